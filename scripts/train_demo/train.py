#!/usr/bin/env python3
"""Trains the demo checkpoint: tokenizer, autoencoder, then one model for all tasks.

  scripts/train_demo/train.py --output build/demo

needs PyTorch 2.11 with a GPU, tokenizers and safetensors. It may be stopped and run again:
`--minutes 9` ends a piece in time, the next call goes on where it stopped. The checkpoint, in the
released layout, lies in OUTPUT/checkpoint after each piece; it is the one that the demo ships once
all steps are done. How it went is in OUTPUT/log.jsonl.
"""
import argparse
import copy
import json
import math
import os
import pathlib
import random
import sys
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.nn.functional as F
import torch.fx.experimental._config as shapes

import autoencoder
import data
import export
import model as bagel
import render
import sequence
import vocabulary
import world

SLOTS = {"t2i": ("latent",), "think": ("latent",), "edit": ("vit", "context", "latent"),
         "think_edit": ("vit", "context", "latent"), "understand": ("vit",),
         "think_understand": ("vit",)}
PAINTS = ("t2i", "think", "edit", "think_edit")
CE_WEIGHT = 0.15
EMA = 0.998


class Clock:
    def __init__(self, minutes):
        self.started = time.monotonic()
        self.deadline = self.started + 60 * minutes

    def over(self):
        return time.monotonic() > self.deadline

    def seconds(self):
        return time.monotonic() - self.started


class Log:
    def __init__(self, path):
        self.path = path

    def __call__(self, **values):
        line = json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()})
        print(line, flush=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def cosine(step, steps, peak, warmup):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * min(1, (step - warmup) / (steps - warmup))))


def loader(dataset, first, workers):
    return iter(torch.utils.data.DataLoader(
        dataset, batch_size=None, sampler=range(first, len(dataset)), num_workers=workers,
        prefetch_factor=4 if workers else None, pin_memory=False))


def to_input(pictures):
    return pictures / 127.5 - 1


def mixed(device):
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


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
        rows = render.pack([world.sample_scene(rng, width, height)[1] for _ in range(count)])
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
    """Two halves: all of it, with a little noise on the latents; then, its latents standardised, the
    decoder alone, with more noise, so that it forgives what diffusion leaves."""
    path = args.output / "autoencoder.pt"
    vae = autoencoder.Autoencoder().to(device)
    if path.exists():
        vae.load_state_dict(torch.load(path, map_location=device))
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


def sample_times(n, device):
    """Mostly where layouts form: logit-normal, shifted towards noise; some uniform."""
    u = torch.sigmoid(torch.randn(n, device=device))
    t = 2 * u / (1 + u)
    return torch.where(torch.rand(n, device=device) < 0.2, torch.rand(n, device=device), t)


def losses(model, kind, packed, pictures, latents, seen, h, w):
    """(sum of squared velocity errors, their number, sum of cross entropies, theirs, right ones)."""
    device = latents.device
    packed = {k: v.to(device, non_blocking=True) for k, v in packed.items()}
    picks, sides = packed["picks"], packed["sides"]
    batch = sequence.lay_out(packed, SLOTS[kind], h * w, bagel.UNSEEN)
    count = pictures.shape[0] // 2
    chosen = picks + sides * count
    zero = latents.new_zeros(())
    if "vit" in SLOTS[kind]:
        batch["vit_pictures"] = seen[chosen if kind.endswith("understand") else picks]
    if "context" in SLOTS[kind]:
        batch["context"] = latents[picks]
    if kind in PAINTS:
        target = latents[chosen]
        t = sample_times(len(picks), device)
        noise = torch.randn_like(target)
        batch["time"] = t
        t = t.view(-1, 1, 1)
        batch["latent"] = (1 - t) * target + t * noise
    hidden, velocity = model(batch, h, w)
    squares, values = zero, 0
    if kind in PAINTS:
        squares, values = (velocity.float() - (noise - target)).square().sum(), target.numel()
    if kind in ("t2i", "edit"):
        return squares, values, zero, 0, zero
    targets = batch["targets"]
    wanted = targets != sequence.IGNORED
    logits = model.logits(hidden[wanted]).float()
    answers = targets[wanted]
    right = (logits.argmax(dim=-1) == answers).sum()
    return squares, values, F.cross_entropy(logits, answers, reduction="sum"), len(answers), right


def parameter_groups(model):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]


def save_state(path, model, ema, optimizer, step):
    """The averages and moments in half precision: a piece of training begins with them only."""
    moments = {i: {k: v.to(torch.bfloat16) if k.startswith("exp_avg") else v for k, v in s.items()}
               for i, s in optimizer.state_dict()["state"].items()}
    state = {"step": step, "model": model.state_dict(), "moments": moments,
             "ema": {k: v.to(torch.bfloat16) for k, v in ema.items()}}
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load_state(path, model, ema, optimizer):
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"])
    for name, value in state["ema"].items():
        ema[name].copy_(value)
    groups = optimizer.state_dict()["param_groups"]
    moments = {i: {k: v.float() if torch.is_tensor(v) else v for k, v in s.items()}
               for i, s in state["moments"].items()}
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return state["step"]


def train_model(args, device, vae, clock, log):
    tokenizer = args.output / "checkpoint"
    torch.manual_seed(args.seed)
    model = bagel.Bagel(bagel.Sizes(vocabulary.PADDED)).to(device)
    ema = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=1e-3, betas=(0.9, 0.98),
                                  fused=True)
    path = args.output / "state.pt"
    first = load_state(path, model, ema, optimizer) if path.exists() else 0
    torch.manual_seed(args.seed + first)
    draw = render.render
    vae.encoder.to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    if args.compile:
        torch._dynamo.config.recompile_limit = 32
        shapes.use_duck_shape = False  # lengths that happen to agree are not the same length
        draw = torch.compile(draw, dynamic=True)
        for layer in (*model.language_model.model.layers,
                      *model.vit_model["vision_model"].encoder["layers"]):
            layer.compile(dynamic=True)
    steps = loader(data.Steps(tokenizer, args.steps, args.seed, args.pairs), first, args.workers)
    names = list(ema)
    parameters = dict(model.named_parameters())
    sums, since, skipped = {}, clock.seconds(), torch.zeros((), device=device)
    step = first
    for step in range(first, args.steps):
        if clock.over():
            break
        if args.profile and step == first + 90:
            profiler = torch.profiler.profile()
            profiler.start()
        if args.profile and step == first + 102:
            profiler.stop()
            print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=40,
                                                max_name_column_width=70)[:14000], flush=True)
        batch = next(steps)
        width, height = batch["width"], batch["height"]
        h, w = height // bagel.PATCH, width // bagel.PATCH
        rows = torch.cat([batch["before"], batch["after"]]).to(device)
        with torch.no_grad():
            pictures = to_input(draw(rows, width, height).round())
            latents = autoencoder.pack(vae.encode(pictures.to(vae.encoder.conv_in.weight.dtype)))
            seen = pictures + torch.randn_like(pictures) * \
                (0.03 * torch.rand(len(pictures), 1, 1, 1, device=device))
        squares, values, entropy, tokens = 0.0, 0, 0.0, 0
        with mixed(device):
            for kind, packed in batch["batches"].items():
                a, b, c, d, right = losses(model, kind, packed, pictures, latents, seen, h, w)
                weight = 1.5 if "edit" in kind else 1.0
                squares, values = squares + weight * a, values + weight * b
                entropy, tokens = entropy + c, tokens + d
                told = sums.setdefault(kind, [0.0, 0, 0.0, 0, 0.0])
                for i, value in enumerate((a, b, c, d, right)):
                    told[i] = told[i] + (value.detach() if torch.is_tensor(value) else value)
        loss = squares / values + CE_WEIGHT * entropy / max(1, tokens)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        # A step whose gradients are not finite is skipped, on the GPU, without waiting for it.
        optimizer.grad_scale, optimizer.found_inf = None, (~norm.isfinite()).float()
        skipped = skipped + optimizer.found_inf
        for group in optimizer.param_groups:
            group["lr"] = cosine(step, args.steps, args.rate, 400)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        keep = min(EMA, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_([ema[n] for n in names], [parameters[n].detach() for n in names],
                                 1 - keep)
        if step % 300 == 299 or step in (0, 40, 80):
            told = {}
            for kind, (a, b, c, d, right) in sums.items():
                if b:
                    told[f"{kind} mse"] = float(a) / b
                if d:
                    told[f"{kind} ce"], told[f"{kind} right"] = float(c) / d, float(right) / d
            if skipped > 20:
                raise RuntimeError(f"{int(skipped)} steps had gradients that are not finite")
            log(stage="model", step=step, **told, skipped=int(skipped), seconds=clock.seconds(),
                per_step=(clock.seconds() - since) / max(1, step + 1 - first))
            sums = {}
    else:
        step = args.steps
    save_state(path, model, ema, optimizer, step)
    trained = bagel.Bagel(model.sizes).to(device)
    trained.load_state_dict(ema)
    return trained.eval(), step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("build/demo"))
    parser.add_argument("--minutes", type=float, default=1e6, help="stop and save after so many")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=14000)
    parser.add_argument("--pairs", type=int, default=data.PAIRS)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--vae-steps", type=int, default=3600)
    parser.add_argument("--vae-batch", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=max(0, (os.cpu_count() or 1) - 2))
    parser.add_argument("--profile", action="store_true", help="of twelve steps, printed")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    clock, device = Clock(args.minutes), torch.device(args.device)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # gave gradients that were not finite, once
    checkpoint = args.output / "checkpoint"
    checkpoint.mkdir(parents=True, exist_ok=True)
    log = Log(args.output / "log.jsonl")
    if not (checkpoint / "tokenizer.json").exists():
        vocabulary.train(checkpoint)
        log(stage="tokenizer", seconds=clock.seconds())
    torch.manual_seed(args.seed)
    vae = train_autoencoder(args, device, clock, log).requires_grad_(False)
    model, step = train_model(args, device, copy.deepcopy(vae), clock, log)
    export.write(checkpoint, model, vae)
    log(stage="export", step=step, of=args.steps, seconds=clock.seconds())
    return 0


if __name__ == "__main__":
    sys.exit(main())
