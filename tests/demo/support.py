"""What the demo's tests share: OpenCV or a skipped test, and the modules of scripts/."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SKIPPED = 77  # what ctest counts as skipped

try:
    import cv2  # noqa: F401
    import numpy  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; scripts/test installs what is missing into .venv")
    sys.exit(SKIPPED)

sys.path[:0] = [str(ROOT / "scripts" / "evaluate"), str(ROOT / "scripts" / "train_demo")]
