"""Sampling in PyTorch, as `diptych` does it, to look at a model between two pieces of training.

The whole context is computed anew each step: simple, and fast enough for a probe.
"""
import torch

import autoencoder
import model as bagel
import sequence


def batch_of(samples, device, h, w, **rows):
    present = [name for name in sequence.SLOTS if any(name in s.slots for s in samples)]
    packed = {k: v.to(device) for k, v in sequence.collate(samples).items()}
    return {**sequence.lay_out(packed, present, h * w, bagel.UNSEEN), **rows}


@torch.no_grad()
def paint(model, branches, h, w, steps=25, scale=4.0, image_scale=1.0, shift=3.0,
          interval=(0.4, 1.0), seed=0, rows=None):
    """Latents [n, h * w, 64]. `branches`: the conditional samples, those without text and, for an
    image scale above 1, those without images, each ending in an image block "latent"; `rows`: context
    and pictures, where the samples have them. Renorm is `global` without an image scale, else
    `text_channel`: the defaults of painting and of editing."""
    device = next(model.parameters()).device
    n = len(branches[0])
    batches = [batch_of(samples, device, h, w,
                        **(rows or {} if any("context" in s.slots for s in samples) else {}))
               for samples in branches]
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(n, h * w, 64, device=device, generator=generator)
    s = torch.linspace(1, 0, steps)
    times = shift * s / (1 + (shift - 1) * s)

    def velocity(batch, t):
        return model({**batch, "latent": x, "time": torch.full((n,), t, device=device)}, h, w)[1].float()

    def shrink(guided, v, dims):
        norms = [y.norm(dim=dims, keepdim=True) for y in (v, guided)]
        return guided * (norms[0] / (norms[1] + 1e-8)).clamp(0, 1)

    for t, following in zip(times[:-1].tolist(), times[1:].tolist()):
        v = velocity(batches[0], t)
        if scale > 1 and interval[0] < t <= interval[1]:
            without = velocity(batches[1], t)
            guided = without + scale * (v - without)
            if image_scale > 1:
                without = velocity(batches[2], t)
                v = without + image_scale * (shrink(guided, v, (2,)) - without)
            else:
                v = shrink(guided, v, (1, 2))
        x = x - v * (t - following)
    return x


@torch.no_grad()
def to_pictures(vae, latents, h, w):
    """uint8 [n, H, W, 3] on the CPU."""
    decoded = vae.decode(autoencoder.unpack(latents.float(), h, w))
    return ((decoded * 0.5 + 0.5).clamp(0, 1) * 255).to(torch.uint8).permute(0, 2, 3, 1).cpu()


@torch.no_grad()
def write(model, tokenizer, samples, h, w, rows=None, most=64):
    """The texts that follow, greedily; the samples get them as their last segment, but for eos."""
    device = next(model.parameters()).device
    written = [[tokenizer.bos] for _ in samples]
    begins = [len(s.rows) for s in samples]
    for s in samples:
        s.rows.append((tokenizer.bos, s.position, s.segment, True, sequence.IGNORED, 0))
    open_ones = set(range(len(samples)))
    for _ in range(most):
        hidden = model(batch_of(samples, device, h, w, **(rows or {})), h, w)[0]
        last = torch.stack([hidden[i, len(s.rows) - 1] for i, s in enumerate(samples)])
        chosen = model.logits(last).float().argmax(dim=-1).tolist()
        for i in sorted(open_ones):
            s = samples[i]
            if chosen[i] == tokenizer.eos:
                open_ones.discard(i)
                continue
            written[i].append(chosen[i])
            s.rows.append((chosen[i], s.position + len(s.rows) - begins[i], s.segment, True,
                           sequence.IGNORED, 0))
        if not open_ones:
            break
    for i, s in enumerate(samples):
        s.rows = s.rows[:begins[i]]
    return [tokenizer.decode(ids[1:]) for ids in written]
