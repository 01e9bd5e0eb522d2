"""package_test.py BUILD TORCH: the packages that scripts/package makes of a build folder paint.

The wheel goes into a fresh virtual environment, in which links stand for torch's wheel: TORCH is the folder
of an installed one.
"""
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
REQUEST = ("generate", "-p", "a red circle", "--steps", "5", "--device", "cpu")


def run(program, *arguments, **environment):
    return subprocess.run([program, *arguments], cwd="/", text=True, capture_output=True, check=False,
                          env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "2", **environment})


def pinned_torch():
    return re.search(r"kTorch=([0-9.]+)", (ROOT / "scripts/setup.sh").read_text(encoding="utf-8"))[1]


class Packages(unittest.TestCase):
    build = torch = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        made = subprocess.run([ROOT / "scripts/package", "--build", cls.build, "--output", cls.folder],
                              text=True, capture_output=True, check=False)
        if made.returncode != 0:
            raise AssertionError(made.stderr)
        cls.wheel, cls.archive = (pathlib.Path(line) for line in made.stdout.splitlines())

    def paint(self, program, name, **environment):
        picture = self.folder / name
        painted = run(program, *REQUEST, "-o", picture, **environment)
        self.assertEqual(painted.returncode, 0, painted.stderr)
        return picture.read_bytes()

    def own_picture(self):
        return self.paint(self.build / "diptych", "own.png")

    def assert_no_libtorch(self, program):
        outcome = run(program, "devices")
        self.assertEqual(outcome.returncode, 3)
        self.assertEqual(outcome.stdout, "")
        self.assertRegex(outcome.stderr, rf"^diptych: libtorch {pinned_torch()} not found; .*LIBTORCH_ROOT.*\n$")

    def test_wheel(self):
        environment = self.folder / "venv"
        venv.create(environment, symlinks=True)
        python = environment / "bin/python3"
        subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps",
                        "--disable-pip-version-check", self.wheel], check=True)
        needs = subprocess.run([python, "-c", "import importlib.metadata as m; print(*m.requires('diptych'), sep='\\n')"],
                               text=True, capture_output=True, check=True).stdout
        self.assertEqual(needs, f"torch=={pinned_torch()}\n")
        program = environment / "bin/diptych"
        self.assertEqual(run(program, "version").stdout, run(self.build / "diptych", "version").stdout)
        self.assert_no_libtorch(program)
        packages = next((environment / "lib").glob("python3*/site-packages"))
        for name in ("torch", "nvidia"):
            (packages / name).symlink_to(self.torch.parent / name)
        self.assertEqual(self.paint(program, "wheel.png"), self.own_picture())

    def test_archive(self):
        subprocess.run(["tar", "-C", self.folder, "-xf", self.archive], check=True)
        tree = self.folder / self.archive.name.removesuffix(".tar.gz")
        program = tree / "bin/diptych"
        self.assert_no_libtorch(program)
        self.assertEqual(self.paint(program, "variable.png", LIBTORCH_ROOT=str(self.torch)), self.own_picture())
        (tree / "lib/diptych/torch").symlink_to(self.torch)
        self.assertEqual(self.paint(program, "link.png"), self.own_picture())
        wrong = run(program, "devices", LIBTORCH_ROOT="/nowhere")
        self.assertEqual(wrong.returncode, 3)
        self.assertRegex(wrong.stderr, r"^diptych: LIBTORCH_ROOT: /nowhere: holds no lib/.*\n$")

    def test_one_version_of_torch_is_named(self):
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        self.assertEqual(set(re.findall(r"torch==([0-9.]+)", project)), {pinned_torch()})


if __name__ == "__main__":
    if importlib.util.find_spec("scikit_build_core") is None:
        print("skipped: no scikit-build-core here")
        sys.exit(77)
    Packages.build, Packages.torch = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1])
