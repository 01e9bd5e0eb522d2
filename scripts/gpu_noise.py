"""Of the part "goldens" of scripts/gpu_check: the noise that a GPU draws against the same call in Python, as the official
code of Lance makes it (specification, 9.4): torch.randn in bfloat16 with a generator of the GPU. Every value must be the same."""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Two clips of the demo, and one of the released sizes: flags, and the seed.
REQUESTS = (
    ((), 42),
    ((), 2025),
    (("-c", ROOT / "stage_configs" / "lance.yaml", "--load-format", "dummy", "--size", "848x480", "--video-frames", "49"), 7),
)


def tensor_of(file, name):
    import torch
    data = file.read_bytes()
    length, = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8:8 + length])[name]
    begin, end = (8 + length + at for at in entry["data_offsets"])
    dtype = {"F32": torch.float32, "BF16": torch.bfloat16}[entry["dtype"]]
    return torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).view(entry["shape"])


def noise(check, program):
    import torch
    folder = ROOT / "build" / "noise"
    for flags, seed in REQUESTS:
        what = f"noise of seed {seed}{' at 848x480' if flags else ''}"
        trace = folder / f"{seed}.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        if check.step("goldens", what, [
                program, "generate", *flags, "--task", "t2v", "-p", "a red circle moves up", "--steps", "1", "--seed", seed,
                "--device", "cuda", "--noise-source", "cuda", "--trace", trace, "--trace-filter", "latent.initial",
                "-o", folder / "clip.frames"], "goldens.log") is None:
            continue
        drawn = tensor_of(trace, "latent.initial").float()
        generator = torch.Generator("cuda").manual_seed(seed)
        official = torch.randn(drawn.shape, device="cuda", dtype=torch.bfloat16, generator=generator).float().cpu()
        differ = int((drawn != official).sum())
        print(f"{what}: {drawn.numel()} values, {differ} differ from torch.randn's", flush=True)
        if differ:
            check.note("goldens", what, "FAILED", f"{differ} of {drawn.numel()} values differ")
