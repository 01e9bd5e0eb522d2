#!/usr/bin/env python3
"""Trains the clip demo: tokenizer, autoencoder, then one small Lance for all tasks of clips.

  scripts/train_demo/train_clips.py --output build/clip_demo

needs PyTorch 2.11 with a GPU, tokenizers and safetensors. It may be stopped and run again: `--minutes 9` ends a
piece in time, as SIGTERM does while the model is trained; the next call goes on where it stopped. The last step
comes `--within` so many minutes of all pieces. The checkpoint, in the released layout, lies in OUTPUT/checkpoint
after each piece; it is finished with the last one. How it went is in OUTPUT/log.jsonl. `--from CHECKPOINT` goes on
from a checkpoint that is finished: its tokenizer and autoencoder stay as they are, the model learns further.

Several GPUs of one machine share about as many rows of a step as one has (`--within` and `--steps` as with one; the
log tells of the first one's):

  torchrun --nproc-per-node 4 scripts/train_demo/train_clips.py --output build/clip_demo
"""
import argparse
import functools
import math
import os
import pathlib
import random
import shutil
import sys

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

try:
    import safetensors  # noqa: F401
    import tokenizers  # noqa: F401
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    import torch.fx.experimental._config as shapes
except ModuleNotFoundError as missing:
    sys.exit(f"train_clips.py: the Python package {missing.name} is missing; needed are PyTorch 2.11, tokenizers "
             "and safetensors")

import auxiliary
import clip_data
import clip_export
import clip_render
import clip_rollout
import clip_sequence
import clips
import lance_model as lance
import model as mot
import sequence
import vocabulary
import wan_autoencoder
from training import (UNLIMITED, Clock, Group, Log, Muon, Replayed, Tally, Training, cosine, loader, mixed,
                      sample_times, to_input, trapezoid)

SLOTS = {"t2v": ("latent",), "i2v": ("latent",), "edit": ("vit", "context", "latent"), "x2t": ("vit",)}
PAINTS = ("t2v", "i2v", "edit")
CE_WEIGHT = 0.2
# Of the training: then rates fall. With 2/3 errors fell by a tenth in its second third, by a third in the last.
LEVEL = 0.2
# By how much more the rows of latents count that show a thing, and how far such a row is from most others of its frame.
STANDING_OUT, APART = 3.0, 0.7
# Rows that a usual thing fills, on average over all frames of its clip; those of smaller things count more, those of
# larger ones less, by at most these factors.
USUAL, LEAST, MOST = 5.5, 0.5, 2.0
CROP, CROPPED_FRAMES = 64, 9  # pixels and frames of what the autoencoder learns on at first
ENCODED = 0.7  # of the training of the autoencoder: until then all of it is trained, then the decoder alone
TILTED = 0.4  # of the things that the autoencoder learns on
FORGIVEN = 0.25  # standard deviations of noise, at most, that the decoder learns to see through


# ---------------------------------------------------------------------------------------------
# Frames


def degraded(frames, share=0.6):
    """[n, t, 3, h, w] in 0..255: some of the clips as they come out of a video file, half the resolution in colour,
    and with a little noise."""
    n, t, _, h, w = frames.shape
    grey = frames.mean(dim=2, keepdim=True)
    colour = F.interpolate(F.avg_pool2d((frames - grey).flatten(0, 1), 2), scale_factor=2, mode="bilinear")
    noise = torch.rand(n, 1, 1, 1, 1, device=frames.device) * 4 * torch.randn_like(frames)
    coarse = (grey + colour.view(n, t, 3, h, w) + noise).clamp(0, 255)
    chosen = torch.rand(n, 1, 1, 1, 1, device=frames.device) < share
    return torch.where(chosen, coarse, frames).round()


@functools.cache
def resizing(length, to, first, count, device):
    """[count, length]: what makes of `length` pixels those from `first` on of `to` many, bicubic with antialiasing."""
    shares = F.interpolate(torch.eye(length, device=device)[None, None], size=(to, length), mode="bicubic",
                           antialias=True, align_corners=False)
    return shares[0, 0, first:first + count].contiguous()


def looked_at(frames, size, mean, std):
    """[n, t, 3, h, w] in 0..255 -> what the vision tower gets: resized to its bucket, cropped, an even t."""
    n, t, _, h, w = frames.shape
    (wide, high), (width, height) = clip_data.SEEN[size]
    down = resizing(h, high, round((high - height) / 2), height, frames.device)
    across = resizing(w, wide, round((wide - width) / 2), width, frames.device)
    with torch.autocast(frames.device.type, enabled=False):
        x = (down @ frames.flatten(0, 1) @ across.T).round().clamp(0, 255)
    x = ((x / 255 - mean) / std).unflatten(0, (n, t))
    return torch.cat([x, x[:, -1:]], dim=1) if t % 2 else x


def to_clip(frames):
    """[n, t, 3, h, w] in 0..255 -> [n, 3, t, h, w] in -1..1."""
    return to_input(frames).transpose(1, 2).contiguous(memory_format=torch.channels_last_3d)


# ---------------------------------------------------------------------------------------------
# The autoencoder


class Films(torch.utils.data.Dataset):
    """Pieces of loose clips for the first `turn` steps, which is cheap; then whole ones."""

    def __init__(self, steps, turn, seed, count):
        self.steps, self.turn, self.seed, self.count = steps, turn, seed, count

    def __len__(self):
        return self.steps

    def __getitem__(self, step):
        torch.set_num_threads(1)
        rng = random.Random(f"films {self.seed} {step}")
        whole = step >= self.turn
        size, frames = clips.clip_shape(rng) if whole else ((128, 128), 17)
        pixels = size[0] * size[1] * frames if whole else CROP * CROP * CROPPED_FRAMES
        count = max(2, round(self.count * CROP * CROP * CROPPED_FRAMES / pixels))
        films = []
        for _ in range(count):
            if rng.random() < 0.3:
                films.append(clips.arrange(rng, clips.sample_spec(rng), *size, frames))
            else:
                films.append(clips.sample_loose(rng, *size, clip_data.filmed(rng, frames))[1])
        drawn = clip_data.drawn(films, frames)
        for row in drawn["films"]:  # outlines at any angle, whatever spins
            for index in range(clip_render.THINGS):
                if rng.random() < TILTED:
                    row[2 + (index + 1) * clip_render.PARAMETERS] = rng.uniform(0, 2 * math.pi)
        if not whole:
            size = CROP, CROP
            drawn["numbers"] = torch.stack([numbers[first:first + CROPPED_FRAMES] for numbers in drawn["numbers"]
                                            for first in [rng.randrange(frames - CROPPED_FRAMES + 1)]])
            for row, clip in zip(drawn["films"], films):
                thing = rng.choice(clip.things)  # most crops have one in them
                for axis, length in enumerate((clip.width, clip.height)):
                    centre = rng.uniform(*sorted((thing.start[axis], thing.end[axis])))
                    offset = min(max(centre - CROP / 2 + rng.uniform(-30, 30), 0), length - CROP)
                    for index in range(clip_render.THINGS):
                        first = 3 + index * clip_render.PARAMETERS
                        row[first + 4 + axis] -= offset
                        row[first + 6 + axis] -= offset
        return {"size": size, **drawn}


def draw(batch, device, size, **how):
    return clip_render.frames(*(batch[name].to(device) for name in ("films", "numbers", "count")), *size,
                              outline=clip_render.looked_up, **how)


def measure_latents(vae, batches, device):
    """Mean and standard deviation [48] of every channel of raw latents."""
    parts = []
    for batch in batches:
        with torch.no_grad(), mixed(device):
            means = vae.moments(to_clip(draw(batch, device, batch["size"], morphs=False)))[0]
        parts.append(means.transpose(0, 1).flatten(1))
    latents = torch.cat(parts, dim=1)
    std = latents.std(dim=1)
    return latents.mean(dim=1), std.clamp(min=0.25 * std.median())


def train_autoencoder(args, device, clock, log):
    """Two parts: all of it, with the posterior's noise; then, its latents standardised, the decoder alone, with more
    noise, so that it forgives what diffusion leaves. Fewer steps where they take longer than --vae-minutes."""
    path = args.start / "Wan2.2_VAE.pth" if args.start else args.output / "autoencoder.pt"
    vae = wan_autoencoder.Autoencoder().to(device)
    if args.start or path.exists():
        vae.load_state_dict(torch.load(path, map_location=device))
        return vae
    steps, begun = args.vae_steps, clock.seconds()
    films = Films(2 * steps, steps, args.seed, args.vae_batch)
    rate, inner_rate, squared = (torch.zeros((), device=device) for _ in range(3))

    def optimized(*parts):
        """Kernels inside by Muon, all else by AdamW."""
        inner, outer = [], []
        for name, p in ((name, p) for part in parts for name, p in part.named_parameters()):
            (inner if p.dim() > 3 and ("samples" in name or "middle" in name) else outer).append(p)
        return inner + outer, Muon(inner, inner_rate), torch.optim.AdamW(
            outer, lr=rate, betas=(0.9, 0.99), weight_decay=1e-4, fused=True, capturable=device.type == "cuda")

    def learn(key, inputs):
        size, _, decoding = key
        target, weights = draw(inputs, device, size, weighted=True, morphs=False)
        target, weights = to_clip(target), weights.transpose(1, 2)
        loss = 0
        with mixed(device):
            if decoding:
                with torch.no_grad():
                    z = vae.encode(target)
                z = z + FORGIVEN * torch.rand(len(z), 1, 1, 1, 1, device=device) * torch.randn_like(z)
                raw = vae.raw(z)
            else:
                mean, logvar = vae.moments(target)
                logvar = logvar.clamp(-20, 10)
                raw = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
                loss = 1e-5 * 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
            out = vae.decode_raw(raw).float()
        error = out - target
        squared.copy_((weights * error.detach().square()).mean())
        loss = loss + (weights * error.abs()).mean() + 2 * (weights * error.square()).mean()
        parameters, muon, adam = optimizer
        for p in parameters:
            p.grad = None
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        muon.step()
        adam.step()

    take = Replayed(learn, device, args.graphs and device.type == "cuda")
    batches, decoding, step, turned = loader(films, 0, args.workers), False, 0, 0.0
    optimizer = optimized(vae)
    while True:
        if step % 25 == 0 and device.type == "cuda":
            torch.cuda.synchronize()  # graphs are launched faster than they run; the clock is the GPU's
        behind = max(step / steps, (clock.seconds() - begun) / (60 * args.vae_minutes))
        if not decoding and behind >= ENCODED:
            decoding, turned = True, behind
            vae.standardise(*measure_latents(vae, [films[steps + i] for i in range(12)], device))
            vae.encoder.requires_grad_(False)
            vae.conv1.requires_grad_(False)
            optimizer = optimized(vae.decoder, vae.conv2)
            batches = loader(films, steps, args.workers)
        if behind >= 1:
            break
        share = (behind - turned) / (1 - turned) if decoding else behind / (ENCODED + 0.1)
        fade = min(1, (step + 1) / 100) * cosine(int(1000 * share), 1000, 1.0, 0)
        rate.fill_((1e-3 if decoding else 2e-3) * fade)
        inner_rate.fill_((0.01 if decoding else 0.02) * fade)
        batch = next(batches)
        size = tuple(batch["size"])
        inputs = {name: batch[name] for name in ("films", "numbers", "count")}
        take((size, batch["numbers"].shape[1], decoding), inputs)
        if step % 100 == 0:
            log(stage="autoencoder", step=step, decoding=decoding, mse=squared.item(), seconds=clock.seconds())
        step += 1
    log(stage="autoencoder", step=step, mse=squared.item(), seconds=clock.seconds())
    torch.save(vae.state_dict(), path)
    return vae


# ---------------------------------------------------------------------------------------------
# The model


def encode_pool(args, group, vae, clock, log):
    """{kind: {shape: [latents [clips, rows, 48], owners [clips, rows]]}}, of edits (before, after, owners), latents in
    half precision, owners those of clip_render; kept in pool.pt for the next piece, where the time of this one is
    limited. Each process encodes its part."""
    device = group.device
    path = args.output / "pool.pt"
    if path.exists():
        return torch.load(path, map_location=device)
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    pool = {}
    for kind, counts in clip_data.pool_sizes(args.scale).items():
        pool[kind] = {}
        for shape, count in counts.items():
            grid = clip_data.grid_of(*shape)
            pool[kind][shape] = [torch.zeros(count, grid[0] * grid[1] * grid[2], wan_autoencoder.LATENT, dtype=half,
                                             device=device) for _ in range(2 if kind == "edit" else 1)]
            pool[kind][shape].append(torch.zeros(pool[kind][shape][0].shape[:2], dtype=torch.uint8, device=device))
    for block in loader(clip_data.Blocks(args.seed, args.scale, group.rank, group.size), 0, args.workers):
        kind, (size, frames) = block["kind"], block["shape"]
        for index, name in enumerate(name for name in ("before", "after") if name in block):
            with torch.no_grad(), mixed(device):
                drawn = draw(block[name], device, size, morphs=kind != "t2v")
                if kind == "edit" and name == "before":
                    drawn = degraded(drawn)
                elif kind == "i2v":
                    drawn = torch.cat([degraded(drawn[:, :1]), drawn[:, 1:]], dim=1)
                rows = wan_autoencoder.to_rows(vae.encode(to_clip(drawn.round())))
            first = block["first"]
            pool[kind][size, frames][index][first:first + len(rows)] = rows.to(half)
        pool[kind][size, frames][-1][first:first + len(rows)] = clip_render.owners(
            *(block["before"][name].to(device) for name in ("films", "numbers", "count")), *size,
            morphs=kind != "t2v", outline=clip_render.looked_up)
    for latents in (latents for shapes in pool.values() for pair in shapes.values() for latents in pair):
        group.sum(latents)  # where a process has not written, it has zeros
    if group.rank == 0 and args.minutes < UNLIMITED:
        torch.save(pool, path.with_suffix(".partial"))
        os.replace(path.with_suffix(".partial"), path)
    log(stage="pool", seconds=clock.seconds())
    return pool


def emphasis(latents, grid, owners):
    """[n, rows, 1]: how much an error in a row of these latents counts. Rows that differ from most of their frame show a
    thing and count more, the more so the fewer rows that thing fills. `owners` [n, rows]: clip_render.owners."""
    framed = latents.unflatten(1, (grid[0], -1))
    apart = (framed - framed.median(dim=2, keepdim=True).values).square().mean(dim=-1, keepdim=True).sqrt()
    apart = (apart / APART).clamp(max=1).flatten(1, 2)
    filled = torch.stack([(owners == index).sum(dim=1) for index in (1, 2)], dim=1) / grid[0]
    shares = F.pad((USUAL / filled.clamp(min=1)).clamp(LEAST, MOST), (1, 0), value=1.0)
    return 1 + STANDING_OUT * apart * shares.gather(1, owners.long()).unsqueeze(-1)


def footage(films, numbers, count, width, height, outline=clip_render.looked_up):
    """Packed clips, most of them as they come out of video files."""
    return degraded(clip_render.frames(films, numbers, count, width, height, outline=outline))


def losses(model, kind, packed, pool, shape, constants, draw_footage, own_way):
    """[11]: weighted sum of squared velocity errors, sum of weights, sum of cross entropies, their number, how many are
    right; rows where the auxiliary heads are right, and all that show things: of shapes, of what is said; of the first
    two those of latents that the model met itself. Then the auxiliary loss. `draw_footage`: does what `footage` does.
    `own_way`: some latents are those that the model meets. Nothing here waits for the GPU or depends on the values in
    `packed`: it may become a CUDA graph."""
    size, frames = shape
    grid = clip_data.grid_of(*shape)
    device = constants[0].device
    grids = {slot: clip_data.seen_grid(*shape) if slot == "vit" else grid for slot in SLOTS[kind]}
    batch = clip_sequence.lay_out(packed, grids, mot.UNSEEN)
    if "vit" in grids:
        with torch.no_grad():
            drawn = draw_footage(*(packed[name] for name in ("films", "numbers", "count")), *size)
            seen = looked_at(drawn, size, *constants)
        batch["looked"] = model.vit_model(seen)
    if "context" in grids:
        batch["context"] = pool[kind][shape][0][packed["pool"]].float()
    if kind in PAINTS:
        target = pool[kind][shape][-2][packed["pool"]].float()
        owners, facts = pool[kind][shape][-1][packed["pool"]], packed["facts"]
        given = grid[1] * grid[2] if kind == "i2v" else 0  # rows of the first picture
        own = 0  # rows, the first, with latents that the model met itself
        if kind in clip_rollout.KINDS:
            painted = round(clip_rollout.PAINTED * len(target)) if own_way else 0
            if painted:
                met, met_times = clip_rollout.met(model, clip_rollout.chosen(batch, slice(painted)), grid,
                                                  target[:painted], given)
                own = len(met)
            source = clip_rollout.sources(len(target), painted, device)
            batch = clip_rollout.chosen(batch, source)
            target, owners, facts = target[source], owners[source], facts[source]
        t = sample_times(len(target), device).view(-1, 1)
        noise = torch.randn_like(target)
        aim = noise - target
        noisy = target + t.unsqueeze(-1) * aim
        weights = emphasis(target, grid, owners)
        if own:
            t = torch.cat([met_times, t[own:]])
            noisy = torch.cat([met, noisy[own:]])
            aim = torch.cat([(met - target[:own]) / met_times.clamp(min=1e-3).unsqueeze(-1), aim[own:]])
            # A request without its words has many results.
            counted = (facts[:own, :1, 0] >= 0) * (met_times / clip_rollout.LEVEL).clamp(max=1).square()
            weights = torch.cat([weights[:own] * counted.unsqueeze(-1), weights[own:]])
        batch["time"], batch["given"] = t, given
        batch["latent"] = torch.cat([target[:, :given], noisy[:, given:]], dim=1)
    hidden, velocity, states = model(batch, grid)
    told = [torch.zeros((), device=device) for _ in range(11)]
    auxiliary_loss = 0.0
    if kind in PAINTS:
        error = (velocity.float() - aim)[:, given:]
        weights = weights[:, given:]
        squares = weights * error.square()
        told[0], told[1] = squares.sum(), weights.sum() * error.shape[-1]
        told[9], told[10] = squares[:own].sum(), weights[:own].sum() * error.shape[-1]
        rows = owners.shape[1]
        asked = [(auxiliary.PAINTED, [state[:, -rows:][:, given:] for state in states], owners[:, given:])]
        if kind == "edit":
            asked.append((auxiliary.CLIP, [state[:, :rows] for state in states], owners))
        elif kind == "i2v":
            asked.append((auxiliary.PICTURE, [state[:, :given] for state in states], owners[:, :given]))
        for heads, parts, of in asked:
            for name, layer in heads:
                entropies, counted, *shares = auxiliary.judged(model.heads, name, layer, parts, of, facts)
                auxiliary_loss = auxiliary_loss + entropies / counted.clamp(min=1)
                place = 5 + 2 * (name == "said")
                told[place], told[place + 1] = told[place] + shares[0], told[place + 1] + shares[1]
    else:
        targets = batch["targets"].flatten()
        logits = model.logits(hidden).float().flatten(0, 1)
        excused = torch.zeros_like(logits).scatter(1, packed["spared"].long().flatten(0, 1),
                                                             auxiliary.EXCUSED)
        told[2] = F.cross_entropy(logits - excused, targets, reduction="sum", ignore_index=sequence.IGNORED)
        told[3] = (targets != sequence.IGNORED).sum().float()
        told[4] = (logits.argmax(dim=-1) == targets).sum().float()
    return torch.stack(told), auxiliary_loss


def compiled(model):
    """Compiles the model's layers and `footage`, which it returns: it draws exact outlines as fast as looked-up ones."""
    torch._dynamo.config.recompile_limit = 64
    shapes.use_duck_shape = False  # lengths that happen to agree are not the same length
    for layer in (*model.language_model.model.layers, *model.vit_model.blocks):
        layer.compile(dynamic=True)
    return functools.partial(torch.compile(footage, dynamic=True), outline=clip_render.exact)


def train_model(args, group, vae, clock, log):
    device = group.device
    torch.manual_seed(args.seed)
    model = lance.Lance(lance.Sizes(clip_data.PADDED)).to(device)
    if args.start:
        clip_export.read(args.start, model)
    training = Training(model, group)
    path = args.output / "state.pt"
    if path.exists():
        training.load(path)
    first = training.step
    draw_footage = compiled(model) if args.compile else footage
    limit = 60 * args.within
    behind = training.done(args.steps, limit, clock.seconds())
    if behind >= 1:
        return training.averaged(device), first
    pool = encode_pool(args, group, vae, clock, log)
    steps = loader(clip_data.Steps(args.output / "checkpoint" / "Lance_3B_Video", args.steps, args.seed, args.scale,
                                   args.rows, group.rank, group.size), first, args.workers)
    torch.manual_seed(args.seed + first + 1000003 * group.rank)
    constants = [torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (lance.VIT_MEAN, lance.VIT_STD)]
    tally, since, saved = Tally(device, SLOTS, ("shape right", "said right", "met mse")), clock.seconds(), clock.seconds()

    def learn(key, inputs):
        shape, kinds, own_way = key
        squares, values, entropy, tokens, known = 0.0, 0.0, 0.0, 0.0, 0.0
        with mixed(device):
            for kind in kinds:
                packed = {name: value for (of, name), value in inputs.items() if of == kind}
                told, auxiliary_loss = losses(model, kind, packed, pool, shape, constants, draw_footage, own_way)
                tally.sums[kind] += told.detach()
                squares, values = squares + told[0], values + told[1]
                entropy, tokens = entropy + told[2], tokens + told[3]
                known = known + auxiliary_loss
        training.update(squares / values + CE_WEIGHT * entropy / tokens.clamp(min=1) + auxiliary.WEIGHT * known)

    take = Replayed(learn, device, args.graphs and device.type == "cuda")
    clock.end_at_sigterm()
    over = group.any(clock.over())
    training.begun = training.begun or clock.seconds()
    while behind < 1 and training.step < args.steps and not over:
        batch = next(steps)
        share = trapezoid(training.step, 400, behind, LEVEL)
        training.set_rates(args.rate * share, args.inner_rate * share)
        own_way = args.start is not None or behind >= clip_rollout.BEGINS
        take((batch["shape"], tuple(batch["batches"]), own_way),
             {(kind, name): value for kind, packed in batch["batches"].items() for name, value in packed.items()})
        training.step += 1
        if training.step % 500 == 0 or training.step in (1, 20, 100):
            skipped = int(training.skipped)
            log(stage="model", step=training.step, **tally.tell(), skipped=skipped, seconds=clock.seconds(),
                per_step=(clock.seconds() - since) / (training.step - first))
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
    return training.averaged(device), training.step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("build/clip_demo"))
    parser.add_argument("--minutes", type=float, default=UNLIMITED, help="stop and save after so many")
    parser.add_argument("--within", type=float, default=38.0, metavar="MINUTES",
                        help="all pieces together, with fewer steps where they take longer (38)")
    parser.add_argument("--from", dest="start", type=pathlib.Path, metavar="CHECKPOINT", help="begin with its weights")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=150000, help="at most (150000)")
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--inner-rate", type=float, default=0.015, help="of the matrices inside layers")
    parser.add_argument("--vae-steps", type=int, default=40000, help="at most (40000)")
    parser.add_argument("--vae-minutes", type=float, default=7.5)
    parser.add_argument("--vae-batch", type=int, default=48, help="pieces of clips a step (48)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, help="processes that draw samples",
                        default=max(0, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)) - 2))
    parser.add_argument("--scale", type=float, default=1.0, help="of the pool of clips (1)")
    parser.add_argument("--rows", type=float, default=1.0, help="of a step, as a factor (1)")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch every kernel")
    args = parser.parse_args()
    clock, group = Clock(args.minutes), Group(args.device)
    torch.set_float32_matmul_precision("high")
    # As in train.py.
    torch.backends.cuda.enable_cudnn_sdp(False)
    checkpoint = args.output / "checkpoint"
    folder = checkpoint / "Lance_3B_Video"
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(args.output / "log.jsonl" if group.rank == 0 else None)
    torch.manual_seed(args.seed)

    def prepare():
        if args.start and group.rank == 0:
            for path in (args.start / folder.name).iterdir():
                if path.suffix != ".safetensors":
                    shutil.copy(path, folder)
        if not (folder / "tokenizer.json").exists():
            vocabulary.train(folder, lines=clip_data.corpus, merges=clip_data.MERGES)
            log(stage="tokenizer", seconds=clock.seconds())
        return train_autoencoder(args, group.device, clock, log)

    vae = group.in_turn(prepare).eval().requires_grad_(False)
    model, step = train_model(args, group, vae, clock, log)
    if group.rank == 0:
        clip_export.write(checkpoint, model, vae, vocabulary.Vocabulary(folder, clip_data.PADDED))
        log(stage="export", step=step, of=args.steps, seconds=clock.seconds())
    if group.size > 1:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
