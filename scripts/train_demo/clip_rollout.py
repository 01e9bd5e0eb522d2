"""Latents that the sampler itself meets, to learn from.

What the model paints at first is a little off, and it has never seen such latents: those of training are right ones with
noise. So errors grow from step to step, and outlines run. Here some of the samples of a step are painted, without a
gradient; the model then learns the way from latents that came up to the right ones. This is DAgger (Ross et al. 2011,
arXiv:1011.0686) for flow matching. It is sound where a request has one right result, as continued pictures and edits of
this world have.
"""
import torch
import torch.nn.functional as F

KINDS = ("i2v", "edit")
BEGINS = 0.6  # of the training: before, what the model paints teaches nothing
STEPS, SHIFT = 8, 3.5  # of the sampler, which has guidance of 1 here; the shift is that of Lance's requests
ROWS = 2  # of a batch, for each sample
PAINTED, KEPT = 0.5, 3  # of the samples, the share that is painted; rows that each of these then has, all others have one
# Below this time what is learned at them counts less, as the square: an error e of a latent is e / time of a velocity.
LEVEL = 0.4


def sources(count, painted, device):
    """int64 [about ROWS * count]: the sample of each row of a batch; those of `painted` samples, the first, come first."""
    samples = torch.arange(count, device=device)
    if not painted:
        return samples.repeat_interleave(ROWS)
    return torch.cat([samples[:painted].repeat_interleave(KEPT), samples[painted:]])


def chosen(batch, rows):
    """Rows of what clip_sequence.lay_out makes, which `rows` (int64, or a slice) picks."""
    mask, hidden, hides = batch["mask"]
    return {**{name: value[rows] for name, value in batch.items() if name != "mask"},
            "mask": (mask[rows], hidden, hides[rows])}


@torch.no_grad()
def met(model, batch, grid, target, given):
    """[n * KEPT, rows, 48] and their times [n * KEPT, 1]: latents met on the way from noise to `target` [n, rows, 48], whose
    first `given` rows are no noise; KEPT of each sample, at times drawn anew."""
    n, device = len(target), target.device
    behind = (torch.arange(STEPS, device=device) + torch.rand(n, 1, device=device)) / STEPS
    times = F.pad(SHIFT * (1 - behind) / (1 + (SHIFT - 1) * (1 - behind)), (1, 0), value=1.0)
    latent = torch.cat([target[:, :given], torch.randn_like(target[:, given:])], dim=1)
    latents = []
    for step in range(STEPS):
        now, then = times[:, step, None], times[:, step + 1, None]
        velocity = model({**batch, "latent": latent, "time": now, "given": given}, grid)[1].float()
        latent = latent + F.pad(((then - now).unsqueeze(-1) * velocity)[:, given:], (0, 0, given, 0))
        latents.append(latent)
    kept = torch.rand(n, STEPS, device=device).topk(KEPT, dim=1).indices
    rows = torch.arange(n, device=device).unsqueeze(1)
    # Autocast would use weights that it has cast here, without a gradient, where one is wanted.
    torch.clear_autocast_cache()
    return torch.stack(latents, dim=1)[rows, kept].flatten(0, 1), times[:, 1:][rows, kept].view(-1, 1)
