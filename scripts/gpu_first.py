"""The part "first" of scripts/gpu_check: what a user's first picture takes, as whole processes on a checkpoint of
the released size on disk."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = pathlib.Path(os.environ.get("DIPTYCH_CHECKPOINT_DIR") or ROOT / "build" / "released")
NEEDED_BYTES = 31 << 30

STAGES = ("load", "prefill", "denoise", "vae", "hash", "encode")

# Seconds of a whole process beside denoising and decoding, and shares.
MOST_BESIDE = 1.5
MOST_OVER_DD = 1.1
MOST_FIRST_OVER_SECOND = 1.15


def written(check):
    """The checkpoint folder, written unless it is there; None where that failed."""
    if (FOLDER / "ema.safetensors").exists():
        return FOLDER
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(FOLDER.parent).free < NEEDED_BYTES:
        check.note("first", "checkpoint", "not run", f"{FOLDER.parent} has less than {NEEDED_BYTES >> 30} GiB free")
        return None
    output = check.step("first", "write a checkpoint of the released size",
                        [sys.executable, ROOT / "scripts" / "write_checkpoint", FOLDER], "first.log")
    return FOLDER if output is not None else None


def drop_page_cache():
    """Whether the next read comes from the disk."""
    subprocess.run(["sync"], check=True)
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1\n", encoding="ascii")
    except OSError:
        return False
    return True


def read_all(check):
    """Seconds in which dd reads the weights."""
    _, _, seconds = check.run(["dd", f"if={FOLDER / 'ema.safetensors'}", "of=/dev/null", "bs=16M"], "first.log")
    return seconds


def stage_seconds(output, stage):
    found = re.search(rf"{stage} ([\d.]+)s", output)
    return float(found[1]) if found else 0.0


def print_timeline(told, seconds):
    """Where a process has come when, by the marks of -v, and how long its end takes."""
    marks = [(float(at), what) for at, what in re.findall(r"at ([\d.]+)s: (.+)", told)]
    before = 0.0
    for at, what in [*sorted(marks), (seconds, "the process is gone")]:
        print(f"    {at:7.2f} {at - before:+7.2f}  {what}")
        before = at
    for line in re.findall(r"\] ((?:rehearsed|not rehearsed|the rehearsal of) .*)", told):
        print(f"    {line}", flush=True)


def picture(check, command, what, size, *flags, output="first.png"):
    """Seconds of the process, and those beside denoising and decoding; None where it failed. `output`: in build."""
    status, told, seconds = check.run(
        command("-m", FOLDER, "--size", f"{size}x{size}", "--steps", "50", "--cfg-img-scale", "1.0", "-v", "--output",
                ROOT / "build" / output, *flags), "first.log")
    if status != 0:
        check.fail("first", what, f"exit code {status}", told)
        return None
    stages = {stage: stage_seconds(told, stage) for stage in STAGES}
    beside = seconds - stages["denoise"] - stages["vae"]
    print(f"{what:34} {size:5} {seconds:7.2f} {beside:7.2f} " + " ".join(f"{stages[s]:7.2f}" for s in STAGES), flush=True)
    if size == 512:
        print_timeline(told, seconds)
    return seconds, beside


def hold(check, what, value, most, text):
    good = value <= most
    check.note("first", what, "ok" if good else "FAILED", "" if good else f"{text}, expected at most {most:.2f}")


def warm_pictures(check, command, cache):
    for what, quantization in (("bf16", "none"), ("fp8", "fp8"), ("int8", "int8")):
        for size in (512,) if quantization != "none" else (512, 1024, 256):
            for hashed in ("hash kept",) if cache.exists() else ("hash not kept", "hash kept"):
                name = f"{what}, page cache, {hashed}"
                ran = picture(check, command, name, size, "--quantization", quantization)
                if ran and quantization != "int8":
                    hold(check, f"{name} at {size}", ran[1], MOST_BESIDE, f"{ran[1]:.2f} s beside denoising and decoding")


def hold_rehearsal(check, command, program):
    """A picture whose steps were captured while its weights were read is that of steps launched by hand."""
    names = "first.png", "first-by-hand.png"
    for name, flags in zip(names, ((), ("--enforce-eager",))):
        if not picture(check, command, name, 256, *flags, output=name):
            return
    check.step("first", "a rehearsed picture, pixel by pixel",
               [program, "compare", "--max-abs", "0", *(ROOT / "build" / name for name in names)], "first.log")


def cold_picture(check, command, cache):
    if not drop_page_cache():
        check.note("first", "cold", "off", "the page cache cannot be dropped here")
        return
    read = read_all(check)
    shutil.rmtree(cache, ignore_errors=True)
    drop_page_cache()
    ran = picture(check, command, "bf16, disk, hash not kept", 512)
    if ran:
        print(f"dd reads the file in {read:.2f} s: {ran[0] / read:.2f} x", flush=True)
        hold(check, "cold over dd", ran[0] / read, MOST_OVER_DD, f"{ran[0]:.2f} s, dd {read:.2f} s")


def first_over_second(check, command):
    """Denoising of a process's first picture over its second's."""
    report = ROOT / "build" / "first.json"
    for size in (512, 1024, 256):
        output = check.step("first", f"two pictures at {size}", command(
            "-m", FOLDER, "--size", f"{size}x{size}", "--steps", "50", "--cfg-img-scale", "1.0", "--warmup", "0",
            "--repeats", "2", "--json", report, verb="bench"), "first.log")
        if output is None:
            continue
        first, second = (run["stages"]["denoise"]
                         for run in json.loads(report.read_text())["cases"][0]["settings"][0]["runs"])
        print(f"denoising at {size}: first picture {first:.3f} s, second {second:.3f} s: {first / second:.3f} x", flush=True)
        hold(check, f"first over second at {size}", first / second, MOST_FIRST_OVER_SECOND, f"{first / second:.3f} x")


def first(check, program, prompt):
    """All of it. `program`: the binary."""
    if written(check) is None:
        return
    cache = ROOT / "build" / "first-cache"
    shutil.rmtree(cache, ignore_errors=True)
    os.environ["XDG_CACHE_HOME"] = str(cache)

    def command(*flags, verb="generate"):
        return [program, verb, "--device", "cuda", "--prompt", prompt, *flags]

    time.sleep(2)  # a hash is kept of files that have settled
    read_all(check)
    print("\n== one picture, the whole process, 7B, random weights on disk, 50 timesteps: seconds; beside: all but "
          "denoising and decoding\n"
          f"{'':34} {'size':>5} {'all':>7} {'beside':>7} " + " ".join(f"{stage:>7}" for stage in STAGES), flush=True)
    warm_pictures(check, command, cache)
    hold_rehearsal(check, command, program)
    first_over_second(check, command)
    cold_picture(check, command, cache)
