"""What rows of latents are to know inside the model of clips: auxiliary losses of its training.

A velocity's error tells a row little of why it is wrong. So linear heads, which no checkpoint has, read in the rows
between layers which shape is there and what the request says of it: the motion it is to have, or whether it is to
change. The idea is REPA's (Yu et al. 2024, arXiv:2410.06940): to give the insides of a painter features to learn.
"""
import functools

import torch
import torch.nn.functional as F
from torch import nn

import clips
from world import SHAPES

KEPT, CHANGED = len(clips.MOTIONS), len(clips.MOTIONS) + 1  # what is said of a thing to be edited
CLASSES = {"shape": len(SHAPES) + 1, "said": len(clips.MOTIONS) + 3}  # the last one: no thing is here
# (what, behind how many layers): in a clip that is given, in a picture that is, in what is painted.
CLIP, PICTURE, PAINTED = (("shape", 2),), (("shape", 2), ("said", 3)), (("shape", 4), ("said", 4))
EMPTY = 0.1  # weight of rows that show no thing
EXCUSED = 3.0  # taken off the logit of what only held-out pairs tell from the right one
WEIGHT = 0.05


class Heads(nn.ModuleDict):
    def __init__(self, hidden):
        super().__init__({f"{name}_{layer}": nn.Linear(hidden, CLASSES[name]) for name, layer in PICTURE + PAINTED})


@functools.cache
def barred(shape, colour, motion, morphed, tinted):
    """Bits of the shapes that are held out with this motion, and of the motions that are with this shape or colour."""
    def held_out(kind, done):
        said = clips.Said(None, colour, kind, done, (0.0, 0.0, 0.0) if tinted else None, SHAPES[0] if morphed else None)
        return clips.is_held_out(said)

    shapes = sum(held_out(other, motion) << i for i, other in enumerate(SHAPES))
    motions = sum(held_out(shape, other) << i for i, other in enumerate(clips.MOTIONS))
    return shapes, motions


def facts(clip, dropped, edit=None):
    """int16 [2, 5] of its things: the shape, the other one of which it is half, what the request says of it, and the
    two `barred`. `edit`: the clips.ClipEdit that the request asks for. Where the request is dropped, -1: nothing is to
    be known."""
    rows = torch.full((2, 5), -1 if dropped else 0, dtype=torch.int16)
    if dropped:
        return rows
    for index, thing in enumerate(clip.things):
        shapes, motions = barred(thing.shape, thing.colour, thing.motion, thing.morph is not None, thing.tint is not None)
        said = clips.MOTIONS.index(thing.motion) if edit is None else CHANGED if index == edit.index else KEPT
        rows[index] = torch.tensor([SHAPES.index(thing.shape), SHAPES.index(thing.morph or thing.shape), said, shapes,
                                    motions])
    return rows


def judged(heads, name, layer, states, owners, known):
    """[4]: weighted sum of cross entropies, sum of weights, rows of things that are right, rows of things.
    `states`: hidden rows behind each layer, each [n, rows, hidden]; `owners` [n, rows]: clip_render.owners;
    `known` [n, 2, 5]: of `facts`."""
    nothing = CLASSES[name] - 1
    logits = heads[f"{name}_{layer}"](states[layer - 1]).float()
    owners = owners.long()
    columns, bits = ((0, 1), known[..., 3]) if name == "shape" else ((2, 2), known[..., 4])
    targets = [F.pad(known[..., column].long().clamp(min=0), (1, 0), value=nothing).gather(1, owners)
               for column in columns]
    off = (F.pad(bits.long().clamp(min=0), (1, 0)).unsqueeze(-1) >> torch.arange(nothing + 1, device=bits.device)) & 1
    off = off.gather(1, owners.unsqueeze(-1).expand(-1, -1, nothing + 1))
    told = F.log_softmax(logits - EXCUSED * off, dim=-1)
    entropy = -sum(told.gather(-1, target.unsqueeze(-1)).squeeze(-1) for target in targets) / 2
    shown = (owners > 0) & (known[:, :1, 0] >= 0)
    weights = torch.where(shown, 1.0, EMPTY) * (known[:, :1, 0] >= 0)
    guess = logits.argmax(dim=-1)
    right = ((guess == targets[0]) | (guess == targets[1])) & shown
    return torch.stack([(weights * entropy).sum(), weights.sum(), right.sum().float(), shown.sum().float()])
