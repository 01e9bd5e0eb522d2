"""The part "parallel" of scripts/gpu_check: one request on two and four GPUs, as far as there are so many, against one of
them, random weights of the released sizes."""
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLIP = ("--format", "png", "--warmup-steps", "1", "--repeats", "1")  # frames are decoded, not encoded
PICTURE = ("--steps", "50", "--cfg-img-scale", "1.0", "--warmup-steps", "4", "--repeats", "2")
WAN_14B, WAN_1_3B = "wan2.1_t2v_14b.yaml", "wan2.1_t2v_1.3b.yaml"

# What is painted: stage config, flags, and the least speed-up of two GPUs.
REQUESTS = (
    ("BAGEL 1024x1024", "bagel.yaml", ("--size", "1024x1024", *PICTURE), None),
    ("BAGEL 1024x1024, guidance in every step", "bagel.yaml", ("--size", "1024x1024", "--cfg-interval", "0,1", *PICTURE), 1.90),
    ("BAGEL 512x512", "bagel.yaml", ("--size", "512x512", *PICTURE), None),
    ("Lance 848x480, 121 frames", "lance.yaml", ("--task", "t2v", "--steps", "6", *CLIP), 1.85),
    ("Wan 1.3B 832x480, 81 frames", WAN_1_3B, ("--size", "832x480", "--steps", "6", *CLIP), None),
    ("Wan 1.3B 1280x720, 81 frames", WAN_1_3B, ("--size", "1280x720", "--steps", "6", *CLIP), None),
    ("Wan 14B 832x480, 81 frames", WAN_14B, ("--size", "832x480", "--steps", "4", *CLIP), 1.85),
    ("Wan 14B 1280x720, 81 frames", WAN_14B, ("--size", "1280x720", "--steps", "2", *CLIP), None),
)


def gpus():
    """Their numbers, as CUDA_VISIBLE_DEVICES has them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return visible.split(",") if visible else []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return [str(i) for i in range(listed.count("GPU "))]


def measure(check, what, command, on):
    """{denoising and the rest in seconds, exchanges, peak} of a request on these GPUs, or None where it failed."""
    ranks = len(on)
    report = ROOT / "build" / f"parallel_{ranks}.json"
    report.unlink(missing_ok=True)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", ranks]
    status, output, _ = check.run(["env", f"CUDA_VISIBLE_DEVICES={','.join(on)}", *(launch if ranks > 1 else []), *command,
                                   "--json", report], f"parallel_{ranks}.log")
    if status != 0 or not report.exists():
        check.fail("parallel", f"{what}, {ranks} GPUs", f"exit code {status}", output)
        return None
    result = json.loads(report.read_text(encoding="utf-8"))
    setting = result["cases"][0]["settings"][0]
    timed = re.search(r"seconds of all steps: (.*); ", output)
    return {"denoise": setting["stages"]["denoise"]["median"], "decode": decode_seconds(setting["stages"]),
            "exchanges": setting.get("exchanges"), "peak": result["peak_bytes"] / 2**30, "timed": timed and timed[1]}


def measure_all(check, what, command, here):
    """{number of GPUs: what was measured}: of one and of two at the same time if there are three, then of four."""
    measured = {}

    def take(on):
        measured[len(on)] = measure(check, what, command, on)

    groups = [here[:1], here[1:3] if len(here) > 2 else here[:2]]
    threads = [threading.Thread(target=take, args=(on,)) for on in groups]
    for thread in threads:
        thread.start()
        if len(here) == 2:
            thread.join()
    for thread in threads:
        thread.join()
    if len(here) >= 4:
        take(here[:4])
    return measured


def decode_seconds(stages):
    """A clip is decoded while its frames are taken, which counts as encoding."""
    return sum(stages[name]["median"] for name in ("vae", "encode") if name in stages)


def describe(one, many, ranks):
    exchanges = many["exchanges"]
    degrees = exchanges["degrees"]
    sent = next(value for key, value in exchanges.items() if key.startswith("sent_bytes_per"))
    speed_up = one["denoise"] / many["denoise"]
    return (f"  {ranks}: cfg {degrees['cfg']} x Ulysses {degrees['ulysses']} x ring {degrees['ring']}: {many['denoise']:.2f} s, "
            f"{speed_up:.2f}x, {speed_up / ranks:.0%}; exchanges {exchanges['share_of_denoising']:.1%}, {sent / 2**30:.2f} GiB; "
            f"peak {many['peak']:.1f} GiB; decoding {many['decode']:.2f} s, {one['decode'] / many['decode']:.2f}x\n"
            f"     timed: {many['timed']}")


def parallel(check, program, prompt):
    here = gpus()
    if len(here) < 2:
        check.note("parallel", "two GPUs", "off", f"{len(here)} GPU is here")
        return
    # NVLink multicast stays off, as docs/parallel.md was measured. Degrees are timed anew.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "parallel_cache")
    (ROOT / "build" / "parallel_cache" / "diptych" / "degrees.json").unlink(missing_ok=True)
    print("\n== denoising by several GPUs: seconds, how many times as fast as one, and that by their number", flush=True)
    for what, config, flags, least in REQUESTS:
        command = [program, "bench", "-c", ROOT / "stage_configs" / config, "--load-format", "dummy", "--device", "cuda", *flags,
                   "--prompt", prompt]
        measured = measure_all(check, what, command, here)
        one = measured.pop(1)
        if one is None:
            continue
        print(f"{what}: {one['denoise']:.2f} s, peak {one['peak']:.1f} GiB, decoding {one['decode']:.2f} s", flush=True)
        for ranks, many in measured.items():
            if many is None:
                continue
            print(describe(one, many, ranks), flush=True)
            speed_up = one["denoise"] / many["denoise"]
            good = ranks != 2 or least is None or speed_up >= least
            check.note("parallel", f"{what}, {ranks} GPUs", "ok" if good else "FAILED",
                       "" if good else f"{speed_up:.2f} times one GPU, expected at least {least}")
