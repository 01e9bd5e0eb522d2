"""The part "parallel" of scripts/gpu_check: one request on two GPUs, and on four where they are, against one of them,
random weights of the released sizes."""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CFG, RING, ULYSSES = "--cfg-parallel-size", "--ring-degree", "--ulysses-degree"

# What is painted: stage config, flags, how rows are divided, and the least speed-ups of two GPUs (branches, rows).
REQUESTS = (
    ("BAGEL 1024x1024", "bagel.yaml", ("--size", "1024x1024"), RING, 1.90, 1.7),
    ("BAGEL 512x512", "bagel.yaml", ("--size", "512x512"), RING, None, None),
    ("BAGEL 256x256", "bagel.yaml", ("--size", "256x256"), RING, None, None),
    ("Lance 848x480, 121 frames", "lance.yaml", ("--task", "t2v", "--steps", "6"), RING, 1.85, 1.8),
    ("Wan 14B 832x480, 81 frames", "wan2.1_t2v_14b.yaml", ("--size", "832x480", "--steps", "4"), ULYSSES, 1.85, 1.8),
)


def gpus():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return listed.count("GPU ")


def denoise_seconds(check, what, command):
    """Of the first picture of a process, or None where it failed."""
    status, output, _ = check.run(command, "parallel.log")
    found = re.search(r"denoise ([\d.]+)s", output)
    if status != 0 or not found:
        check.fail("parallel", what, f"exit code {status}", output)
        return None
    return float(found[1])


def divisions(rows, least):
    """[(column, ranks, flags, least speed-up)]"""
    two = [("2 branches", 2, (CFG, 2), least[0]), ("2 rows", 2, (rows, 2), least[1])]
    if gpus() < 4:
        return two
    return two + [("2 branches x 2 rows", 4, (CFG, 2, RING, 2), None), ("4 rows", 4, (rows, 4), None)]


def parallel(check, program, prompt):
    if gpus() < 2:
        check.note("parallel", "two GPUs", "off", f"{gpus()} GPU is here")
        return
    # NVLink multicast stays off, as docs/parallel.md was measured.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node"]
    print("\n== seconds of denoising, how many times as fast as one GPU, and that by the number of GPUs", flush=True)
    for what, config, flags, rows, *least in REQUESTS:
        command = [program, "generate", "-c", ROOT / "stage_configs" / config, "--load-format", "dummy", "--device", "cuda", *flags,
                   "--prompt", prompt, "-v", "--output", ROOT / "build" / ("parallel.png" if config == "bagel.yaml" else "parallel.frames")]
        one = denoise_seconds(check, what, command)
        if one is None:
            continue
        text = f"{what:28} one {one:.2f}"
        for column, ranks, degrees, wanted in divisions(rows, least):
            seconds = denoise_seconds(check, f"{what}, {column}", [*launch, ranks, *command, *degrees])
            if seconds is None:
                continue
            text += f" | {column} {seconds:.2f} {one / seconds:.2f}x {one / (ranks * seconds):.0%}"
            good = wanted is None or one / seconds >= wanted
            check.note("parallel", f"{what}, {column}", "ok" if good else "FAILED",
                       "" if good else f"{one / seconds:.2f} times one GPU, expected at least {wanted}")
        print(text, flush=True)
