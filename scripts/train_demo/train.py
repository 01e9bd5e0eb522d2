#!/usr/bin/env python3
"""Trains the demo checkpoint: tokenizer, autoencoder, then one model for all tasks.

  scripts/train_demo/train.py --output build/demo

needs PyTorch 2.11 with a GPU, tokenizers and safetensors. It may be stopped and run again:
`--minutes 9` ends a piece in time, as SIGTERM does while the model is trained; the next call goes on
where it stopped. The last step comes `--within` so many minutes of all pieces, after fewer steps where that
is too short for all. The checkpoint, in the released layout, lies in OUTPUT/checkpoint after each piece; it is
finished with the last one. How it went is in OUTPUT/log.jsonl.

  torchrun --nproc-per-node 2 scripts/train_demo/train.py --output build/demo

shares the samples of each step among the GPUs of a host. Their gradients' mean is taken, so that it is the
same training but for its random numbers, and for means of text losses that each takes of its own samples,
as the log tells those of the first one alone.
"""
import argparse
import copy
import os
import pathlib
import random
import sys

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

try:
    import safetensors.torch
    import tokenizers
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    import torch.fx.experimental._config as shapes
except ModuleNotFoundError as missing:
    sys.exit(f"train.py: the Python package {missing.name} is missing; needed are PyTorch 2.11, tokenizers and "
             "safetensors")

import autoencoder
import data
import export
import model as bagel
import probe
import render
import sequence
import vocabulary
import world
from training import (UNLIMITED, Clock, Group, Log, Replayed, Tally, Training, cosine, loader, mixed, sample_times,
                      to_input, trapezoid)

SLOTS = {"t2i": ("latent",), "think": ("latent",), "edit": ("vit", "context", "latent"),
         "think_edit": ("vit", "context", "latent"), "understand": ("vit",),
         "think_understand": ("vit",)}
PAINTS = ("t2i", "think", "edit", "think_edit")
WRITES = ("think", "think_edit", "understand", "think_understand")
CE_WEIGHT = 0.2


# ---------------------------------------------------------------------------------------------
# The autoencoder


class Scenes(torch.utils.data.Dataset):
    """Small pictures for the first `turn` steps, which is cheap; then of all sizes."""

    def __init__(self, steps, turn, seed, count):
        self.steps, self.turn, self.seed, self.count = steps, turn, seed, count

    def __len__(self):
        return self.steps

    def __getitem__(self, step):
        torch.set_num_threads(1)
        rng = random.Random(f"scenes {self.seed} {step}")
        width, height = (128, 128) if step < self.turn else world.picture_size(rng)
        count = max(2, round(self.count * 128 * 128 / (width * height)))
        rows = render.pack([world.sample_scene(rng, width, height, layout="loose")[1]
                            for _ in range(count)])
        return {"width": width, "height": height, "rows": rows}


def measure_latents(vae, batches, device):
    """Mean and standard deviation [16] of every latent channel."""
    parts = []
    for batch in batches:
        pictures = render.render(batch["rows"].to(device), batch["width"], batch["height"])
        with torch.no_grad(), mixed(device):
            parts.append(vae.encode(to_input(pictures)).transpose(0, 1).flatten(1))
    latents = torch.cat(parts, dim=1)
    std = latents.std(dim=1)
    return latents.mean(dim=1), std.clamp(min=0.25 * std.median())


def train_autoencoder(args, device, clock, log):
    """Two parts: all of it, with the posterior's noise; then, its latents standardised, the
    decoder alone, with more noise, so that it forgives what diffusion leaves."""
    path = args.output / "autoencoder.pt"
    vae = autoencoder.Autoencoder().to(device)
    given = safetensors.torch.load_file(args.autoencoder) if args.autoencoder else None
    if path.exists():
        state = torch.load(path, map_location=device)
        if given and any(not torch.equal(state[name].cpu().to(t.dtype), t) for name, t in given.items()):
            sys.exit(f"train.py: --autoencoder {args.autoencoder}: this run began with another, {path}")
        vae.load_state_dict(state)
        return vae
    if given:
        vae.load_state_dict(given)
        torch.save(vae.state_dict(), path)
        return vae
    steps, turn = args.vae_steps, int(0.7 * args.vae_steps)
    scenes = Scenes(steps, turn, args.seed, args.vae_batch)
    batches = loader(scenes, 0, args.workers)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=1e-4)
    for step in range(steps):
        batch = next(batches)
        decoding = step >= turn
        if step == turn:
            recent = [scenes[i] for i in range(turn, min(steps, turn + 16))]
            vae.standardise(*measure_latents(vae, recent, device))
            vae.encoder.requires_grad_(False)
            optimizer = torch.optim.AdamW(vae.decoder.parameters(), lr=1e-3, betas=(0.9, 0.99))
        rate = cosine(step - turn, steps - turn, 6e-4, 20) if decoding else \
            cosine(step, int(1.15 * turn), 2e-3, 100)
        for group in optimizer.param_groups:
            group["lr"] = rate
        pictures = render.render(batch["rows"].to(device), batch["width"], batch["height"])
        target = to_input(pictures)
        with mixed(device):
            mean, logvar = vae.encoder(target).float().chunk(2, dim=1)
            logvar = logvar.clamp(-20, 10)
            z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
            if decoding:
                spread = 0.25 / autoencoder.SCALE * torch.rand(len(z), 1, 1, 1, device=device)
                z = z + spread * torch.randn_like(z)
            out = vae.decoder(z).float()
        error = out - target
        loss = error.abs().mean() + 2 * error.square().mean()
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        if not decoding:
            loss = loss + 2e-5 * kl
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        if step % 200 == 0 or step + 1 == steps:
            log(stage="autoencoder", step=step, mse=error.square().mean().item(), kl=kl.item(),
                std=mean.std().item(), peak=(mean.abs().max() / mean.std()).item(),
                seconds=clock.seconds())
    torch.save(vae.state_dict(), path)
    return vae


# ---------------------------------------------------------------------------------------------
# The model


def losses(model, kind, packed, latents, draw, size):
    """[5]: sum of squared velocity errors, their number, sum of cross entropies, their number, how many
    tokens were right. `latents`: (before, after) of the pool, of this picture size. Nothing here waits
    for the GPU or depends on the values in `packed`: it may become a CUDA graph."""
    width, height = size
    h, w = height // bagel.PATCH, width // bagel.PATCH
    device = latents[0].device
    numbers = packed["numbers"]
    batch = sequence.lay_out(packed, SLOTS[kind], h * w, bagel.UNSEEN)
    if "vit" in SLOTS[kind]:
        batch["vit_pictures"] = noisy_pictures(packed["scenes"], draw, size)
    if "context" in SLOTS[kind]:
        batch["context"] = latents[0][numbers].float()
    if kind in PAINTS:
        target = latents[1][packed["results"]] if "edit" in kind else latents[0][numbers]
        target = target.float()
        t = sample_times(len(target), device)
        noise = torch.randn_like(target)
        batch["time"] = t
        t = t.view(-1, 1, 1)
        batch["latent"] = (1 - t) * target + t * noise
    hidden, velocity = model(batch, h, w)
    told = [torch.zeros((), device=device) for _ in range(5)]
    if kind in PAINTS:
        told[0] = (velocity.float() - (noise - target)).square().sum()
        told[1] = torch.full((), float(target.numel()), device=device)
    if kind in WRITES:
        targets = batch["targets"].flatten()
        logits = model.logits(hidden).float().flatten(0, 1)
        told[2] = F.cross_entropy(logits, targets, reduction="sum", ignore_index=sequence.IGNORED)
        told[3] = (targets != sequence.IGNORED).sum().float()
        told[4] = (logits.argmax(dim=-1) == targets).sum().float()
    return torch.stack(told)


def noisy_pictures(rows, draw, size):
    """Rendered, with a little noise: other painters' edges and colours differ, too."""
    pictures = to_input(draw(rows, *size).round())
    spread = 0.03 * torch.rand(len(pictures), 1, 1, 1, device=rows.device)
    return pictures + spread * torch.randn_like(pictures)


def encode_pool(args, group, vae, draw, clock, log):
    """{size: (before [scenes, rows, 64], after [edits, rows, 64])}, latents in half precision; kept
    in pool.pt for the next piece, where the time of this one is limited. Each process encodes its part."""
    device = group.device
    path = args.output / "pool.pt"
    key = (args.seed, args.pool, float(sum(p.double().sum() for p in vae.parameters())))
    if path.exists():
        kept = torch.load(path, map_location=device)
        if kept["key"] == key:
            return kept["latents"]
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    encoder = copy.deepcopy(vae).to(half)
    pool = {}
    for (w, h), counts in data.pool_sizes(args.pool).items():
        rows = (w // bagel.PATCH) * (h // bagel.PATCH)
        pool[w, h] = tuple(torch.zeros(count, rows, 64, dtype=half, device=device) for count in counts)
    for block in loader(data.Blocks(args.pool, args.seed, group.rank, group.size), 0, args.workers):
        size, first = tuple(block["size"]), block["first"]
        for latents, name, place in zip(pool[size], ("before", "after"),
                                        (first, first // data.EDITED * data.EDITS)):
            with torch.no_grad():
                pictures = to_input(draw(block[name].to(device), *size).round())
                encoded = autoencoder.pack(encoder.encode(pictures.to(half)))
            latents[place:place + len(encoded)] = encoded.to(half)
    for pair in pool.values():
        for latents in pair:
            group.sum(latents)  # where a process has not written, it has zeros
    if group.rank == 0 and args.minutes < UNLIMITED:
        torch.save({"key": key, "latents": pool}, path.with_suffix(".partial"))
        os.replace(path.with_suffix(".partial"), path)
    log(stage="pool", scenes=args.pool, seconds=clock.seconds())
    return pool


def compiled(model):
    torch._dynamo.config.recompile_limit = 32
    shapes.use_duck_shape = False  # lengths that happen to agree are not the same length
    for layer in (*model.language_model.model.layers,
                  *model.vit_model["vision_model"].encoder["layers"]):
        layer.compile(dynamic=True)
    return torch.compile(render.render, dynamic=True)


def train_model(args, group, vae, clock, log):
    device = group.device
    torch.manual_seed(args.seed)
    model = bagel.Bagel(bagel.Sizes(vocabulary.PADDED)).to(device)
    training = Training(model, group)
    path = args.output / "state.pt"
    if path.exists():
        training.load(path)
    first = training.step
    draw = compiled(model) if args.compile else render.render
    limit = 60 * args.within
    behind = training.done(args.steps, limit, clock.seconds())
    if behind >= 1:
        return training.averaged(device), first
    pool = encode_pool(args, group, vae, draw, clock, log)
    steps = loader(data.Steps(args.output / "checkpoint", args.steps, args.seed, args.samples, args.pool,
                              group.rank, group.size), first, args.workers)
    torch.manual_seed(args.seed + first + 1000003 * group.rank)
    tally, since, saved = Tally(device, SLOTS), clock.seconds(), clock.seconds()

    def learn(key, inputs):
        size, kinds = key
        squares, values, entropy, tokens = 0.0, 0.0, 0.0, 0.0
        with mixed(device):
            for kind in kinds:
                packed = {name: value for (of, name), value in inputs.items() if of == kind}
                told = losses(model, kind, packed, pool[size], draw, size)
                tally.sums[kind] += told.detach()
                weight = 1.5 if "edit" in kind else 1.0
                squares, values = squares + weight * told[0], values + weight * told[1]
                entropy, tokens = entropy + told[2], tokens + told[3]
        training.update(squares / values + CE_WEIGHT * entropy / tokens.clamp(min=1))

    take = Replayed(learn, device, args.graphs and device.type == "cuda")
    clock.end_at_sigterm()
    over = group.any(clock.over())
    training.begun = training.begun or clock.seconds()
    while behind < 1 and training.step < args.steps and not over:
        batch = next(steps)
        share = trapezoid(training.step, 400, behind)
        training.set_rates(args.rate * share, args.inner_rate * share)
        take((tuple(batch["size"]), tuple(batch["batches"])),
             {(kind, name): value for kind, packed in batch["batches"].items()
              for name, value in packed.items()})
        training.step += 1
        if training.step % 500 == 0 or training.step in (1, 40, 80):
            skipped = int(training.skipped)
            log(stage="model", step=training.step, **tally.tell(), skipped=skipped,
                seconds=clock.seconds(), per_step=(clock.seconds() - since) / (training.step - first))
            if skipped > 20:
                raise RuntimeError(f"{skipped} steps had gradients that are not finite")
        if training.step % 25 == 0:
            if device.type == "cuda":
                torch.cuda.synchronize()  # graphs are launched faster than they run; the clock is the GPU's
            over, behind = group.any(clock.over()), training.done(args.steps, limit, clock.seconds())
        elif group.size == 1:
            over = clock.over()
        if clock.seconds() - saved > 100:
            training.save(path, clock.seconds())
            saved = clock.seconds()
    training.save(path, clock.seconds())
    if training.step < args.steps and training.done(args.steps, limit, clock.seconds()) >= 1:
        log(stage="model", step=training.step, of=args.steps, ended=f"by --within {args.within:g}")
    return training.averaged(device), training.step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("build/demo"))
    parser.add_argument("--minutes", type=float, default=UNLIMITED, help="stop and save after so many")
    parser.add_argument("--within", type=float, default=38.0, metavar="MINUTES",
                        help="all pieces together, with fewer steps where they take longer (38)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=48000, help="at most (48000)")
    parser.add_argument("--samples", type=int, default=data.SAMPLES, help="painted from captions, a step")
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--inner-rate", type=float, default=0.015, help="of the matrices inside layers")
    parser.add_argument("--vae-steps", type=int, default=3600)
    parser.add_argument("--vae-batch", type=int, default=48)
    parser.add_argument("--autoencoder", type=pathlib.Path, metavar="FILE",
                        help="this ae.safetensors of an earlier run, instead of training one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, help="processes that draw samples, for each GPU",
                        default=max(0, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)) - 2))
    parser.add_argument("--pool", type=int, default=data.POOL)
    parser.add_argument("--probe", type=int, default=200, metavar="N",
                        help="after the piece, N questions of each kind (0: none); needs OpenCV")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch every kernel")
    args = parser.parse_args()
    if args.autoencoder and not args.autoencoder.is_file():
        parser.error(f"--autoencoder: {args.autoencoder}: found no file, expected an ae.safetensors")
    clock, group = Clock(args.minutes), Group(args.device)
    torch.set_float32_matmul_precision("high")
    # A run with it had gradients that were not finite; that it was the cause has not been shown.
    torch.backends.cuda.enable_cudnn_sdp(False)
    checkpoint = args.output / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    log = Log(args.output / "log.jsonl" if group.rank == 0 else None)
    torch.manual_seed(args.seed)

    def prepare():
        if not (checkpoint / "tokenizer.json").exists():
            vocabulary.train(checkpoint)
            log(stage="tokenizer", seconds=clock.seconds())
        return train_autoencoder(args, group.device, clock, log)

    vae = group.in_turn(prepare).eval().requires_grad_(False)
    model, step = train_model(args, group, vae, clock, log)
    if group.rank == 0:
        export.write(checkpoint, model, vae)
        log(stage="export", step=step, of=args.steps, seconds=clock.seconds())
        if args.probe:
            log(stage="probe", **probe.run(model, vae, vocabulary.Vocabulary(checkpoint), args.probe),
                seconds=clock.seconds())
    if group.size > 1:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
