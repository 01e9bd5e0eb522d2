"""Samples as BAGEL's contexts lay them out: segments, positions, and who sees whom.

A text segment is [bos] + tokens + [eos], causal, one position a token. An image block is [start
marker, rows, end marker], all at one position, seeing each other. Every segment sees those before it,
but for those of other branches: several questions about one picture share its rows, and each is laid
out as if it stood alone.
"""
import torch
import torch.nn.functional as F

IGNORED = -100  # as a target: no loss

VLM_THINK_SYSTEM_PROMPT = (
    "You should first think about the reasoning process in the mind and then provide the user with "
    "the answer. \nThe reasoning process is enclosed within <think> </think> tags, i.e. <think> "
    "reasoning process here </think> answer here")
GEN_THINK_SYSTEM_PROMPT = (
    "You should first think about the planning process in the mind and then generate the image. \n"
    "The planning process is enclosed within <think> </think> tags, i.e. <think> planning process "
    "here </think> image here")

SLOTS = ("vit", "context", "latent")  # rows behind the text rows, in this order


class Sample:
    """One sequence under construction. `tokenizer`: see vocabulary.py."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.rows = []  # (id, position, segment, causal, target, branch)
        self.slots = {}  # name -> (position, segment)
        self.position = self.segment = self.branch = 0  # branch 0: what all of them see

    def text(self, text, learned=False):
        """`learned`: the model is to write it, behind bos."""
        t = self.tokenizer
        ids = [t.bos, *t.encode(text), t.eos]
        for i, token in enumerate(ids):
            target = ids[i + 1] if learned and i + 1 < len(ids) else IGNORED
            self.rows.append((token, self.position + i, self.segment, True, target, self.branch))
        self.position += len(ids)
        self.segment += 1
        return self

    def image(self, slot):
        for token in (self.tokenizer.image_start, self.tokenizer.image_end):
            self.rows.append((token, self.position, self.segment, False, IGNORED, self.branch))
        self.slots[slot] = (self.position, self.segment)
        self.position += 1
        self.segment += 1
        return self

    def copy(self):
        other = Sample(self.tokenizer)
        other.__dict__.update(self.__dict__, rows=list(self.rows), slots=dict(self.slots))
        return other

    def branched(self, trunk, number):
        """Goes on as branch `number` (1, 2, ...) of the sample that `trunk` was a copy of."""
        self.position, self.segment, self.branch = trunk.position, trunk.segment, number
        return self


def collate(samples, length=None):
    """int16 tensors [n, length, 6] of the text rows and [n, 3, 2] of the slots; segment -1: nothing."""
    length = length or max(len(s.rows) for s in samples)
    length = -(-length // 8) * 8
    rows = torch.zeros(len(samples), length, 6, dtype=torch.int16)
    rows[:, :, 2] = -1
    rows[:, :, 4] = IGNORED
    slots = torch.full((len(samples), len(SLOTS), 2), -1, dtype=torch.int16)
    for i, sample in enumerate(samples):
        if sample.rows:
            rows[i, :len(sample.rows)] = torch.tensor(sample.rows, dtype=torch.int16)
        for name, where in sample.slots.items():
            slots[i, SLOTS.index(name)] = torch.tensor(where)
    return {"rows": rows, "slots": slots}


def lay_out(packed, present, count, unseen):
    """The batch `Bagel.forward` takes: ids, targets, positions, mask. `present`: the slots that the
    batch has rows for, `count` rows each; `unseen` rows follow where none of them is a latent."""
    rows, slots = packed["rows"].long(), packed["slots"].long()
    n, length = rows.shape[:2]
    positions, segments, causal = [rows[..., 1]], [rows[..., 2]], [rows[..., 3].bool()]
    for name in present:
        where = slots[:, SLOTS.index(name)]
        positions.append(where[:, :1].expand(n, count))
        segments.append(where[:, 1:].expand(n, count))
        causal.append(torch.zeros(n, count, dtype=torch.bool, device=rows.device))
    if "context" not in present and "latent" not in present:
        positions.append(rows.new_zeros(n, unseen))
        segments.append(rows.new_full((n, unseen), -1))
        causal.append(torch.zeros(n, unseen, dtype=torch.bool, device=rows.device))
    positions, segments, causal = (torch.cat(x, dim=1) for x in (positions, segments, causal))
    branches = F.pad(rows[..., 5], (0, segments.shape[1] - length))
    order = torch.arange(segments.shape[1], device=rows.device)
    mine, theirs = segments.unsqueeze(2), segments.unsqueeze(1)
    later = order.view(1, 1, -1) > order.view(1, -1, 1)
    sees = (theirs >= 0) & ((theirs < mine) |
                            ((theirs == mine) & ~(causal.unsqueeze(2) & later)))
    sees &= (branches.unsqueeze(1) == 0) | (branches.unsqueeze(1) == branches.unsqueeze(2))
    sees |= order.view(1, 1, -1) == order.view(1, -1, 1)  # rows of padding see themselves
    # Additive, as fused attention wants it; its rows must be whole pieces of 16 bytes. Finite, since
    # a block of nothing but -inf is where kernels differ.
    assert segments.shape[1] % 8 == 0
    mask = torch.zeros(sees.shape, dtype=torch.bfloat16 if rows.is_cuda else torch.float32,
                       device=rows.device).masked_fill_(~sees, -30000.0)
    return {"ids": rows[..., 0], "targets": rows[..., 4], "positions": positions.clamp(min=0),
            "mask": mask}
