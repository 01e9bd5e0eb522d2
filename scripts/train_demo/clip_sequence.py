"""Samples as Lance lays them out: one rendered conversation, its visual blocks, positions in time, row and column,
and who sees whom (shared/specs: lance.md, sections 4, 5 and 8.1; bytedance/Lance @4baeee0).

Text is causal; a visual block, [start marker, rows, end marker], sees itself and what came before. What is learned
may stand in branches: several questions about one clip share its rows.
"""
import torch
import torch.nn.functional as F

import sequence

SYSTEM = {
    "t2v": "Describe the video by detailing the color, quantity, visible text, shape, size, texture, spatial "
           "relationships and motion/camera movements of the objects and background:",
    "edit": "Describe the key features of the input video (color, shape, size, texture, objects, background), then "
            "explain how the user\u2019s text instruction should alter or modify the video. Generate a new video "
            "that meets the user\u2019s requirements while maintaining consistency with the original input where "
            "appropriate.",
    "x2t": "Watch the video carefully and answer the question.",
}
SYSTEM["i2v"] = SYSTEM["t2v"]
SLOTS = ("vit", "context", "latent")  # rows behind the text rows, in this order
SHIFT = 1000  # of what the vision tower sees of a clip to be edited, in time
HIDDEN, COLUMNS = -30000.0, 8  # what is added to the products of rows that do not see each other; see lay_out
END = "<|im_end|>"  # of a turn
SPARED = 6  # ids, at most, at a row
SECONDS = 2  # positions from a frame of a block to the next


class Sample:
    """One sequence under construction. `tokenizer`: see vocabulary.py. Grids are (t, h, w) of a block's rows."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.rows = []  # (id, position in time, row, column, segment, causal, target, branch)
        self.slots = {}  # name -> (position in time, row and column of its first row, segment)
        self.spared = {}  # row -> ids beside its target that count as no mistake
        self.position = self.segment = self.branch = 0

    def text(self, text, learned=False, fixed=False):
        """`learned`: the model is to write it, behind what stands before it. `fixed`: one of a few."""
        ids = self.tokenizer.encode_fixed(text) if fixed else self.tokenizer.encode(text)
        if learned:
            before = self.rows.pop()
            self.rows.append((*before[:6], ids[0], before[7]))
        for i, token in enumerate(ids):
            target = ids[i + 1] if learned and i + 1 < len(ids) else sequence.IGNORED
            self.rows.append((token, *(self.position + i,) * 3, self.segment, True, target, self.branch))
        self.position += len(ids)
        self.segment += 1
        return self

    def left_out(self, text):
        """The place of a text without it, for guidance: what follows stands where it would."""
        self.position += len(self.tokenizer.encode(text))
        return self

    def block(self, slot, grid, first=None, shifted=False):
        """`first`: the position of its start marker, where it does not follow the text before it. `shifted`: in
        time, behind SHIFT."""
        begin = self.position if first is None else first
        time = SHIFT if shifted else begin
        last = max(SECONDS * (grid[0] - 1), grid[1] - 1, grid[2] - 1)
        end = begin + 2 + last
        for token, place in ((self.tokenizer.image_start, begin), (self.tokenizer.image_end, end)):
            self.rows.append((token, place - begin + time, place, place, self.segment, False, sequence.IGNORED,
                              self.branch))
        self.slots[slot] = (time + 1, begin + 1, begin + 1, self.segment)
        self.position = end + 1
        self.segment += 1
        return self

    def opened(self, kind):
        return self.text(f"<|im_start|>system\n{SYSTEM[kind]}<|im_end|>\n<|im_start|>user\n", fixed=True)

    def answered(self):
        return self.text("<|im_end|>\n<|im_start|>assistant\n", fixed=True)

    def copy(self):
        other = Sample(self.tokenizer)
        other.__dict__.update(self.__dict__, rows=list(self.rows), slots=dict(self.slots), spared=dict(self.spared))
        return other

    def spare(self, text, others):
        """The text was learned last; that it is none of the others is not."""
        ids = self.tokenizer.encode(text)
        before = len(self.rows) - len(ids) - 1
        for other in others:
            pairs = zip(ids, self.tokenizer.encode(other))
            place, token = next((i, b) for i, (a, b) in enumerate(pairs) if a != b)
            spared = self.spared.setdefault(before + place, [])
            if token not in spared:
                spared.append(token)


def painted(tokenizer, words, grid, dropped):
    """A clip from text, or one that continues a picture."""
    sample = Sample(tokenizer).opened("t2v")
    without = sample.position
    sample = sample.left_out(words) if dropped else sample.text(words)
    length = sample.position - without
    sample.answered()
    # Without its caption the clip itself stands where it would if there were none.
    return sample.block("latent", grid, sample.position - length if dropped else None)


def edited(tokenizer, words, grid, vit_grid, dropped):
    sample = Sample(tokenizer).opened("edit").block("vit", vit_grid, shifted=True)
    first = sample.position
    sample.block("context", grid)
    sample = sample.left_out(words) if dropped else sample.text(words)
    return sample.answered().block("latent", grid, first)


def asked(tokenizer, questions, vit_grid, length):
    """As many of the questions, (question, answer, what the model is not to unlearn for it) each, as there are rows
    for."""
    trunk = Sample(tokenizer).opened("x2t").block("vit", vit_grid)
    sample = trunk
    for number, (question, answer, others) in enumerate(questions, 1):
        longer = sample.copy()
        longer.position, longer.segment, longer.branch = trunk.position, trunk.segment, number
        longer.text(question).answered().text(answer + END, learned=True)
        if len(longer.rows) > length:
            break
        longer.spare(answer + END, sorted(other + END for other in others))
        sample = longer
    return sample


def collate(samples, length, unused):
    """int16 tensors [n, length, 8] of the text rows, [n, 3, 4] of the slots, and [n, length, SPARED] of the ids that
    count as no mistake; segment -1: nothing. `unused`: an id that never stands in a text."""
    rows = torch.zeros(len(samples), length, 8, dtype=torch.int16)
    rows[:, :, 4] = -1
    rows[:, :, 6] = sequence.IGNORED
    slots = torch.full((len(samples), len(SLOTS), 4), -1, dtype=torch.int16)
    spared = torch.full((len(samples), length, SPARED), unused, dtype=torch.int16)
    for i, sample in enumerate(samples):
        rows[i, :len(sample.rows)] = torch.tensor(sample.rows, dtype=torch.int16)
        for name, where in sample.slots.items():
            slots[i, SLOTS.index(name)] = torch.tensor(where)
        for row, ids in sample.spared.items():
            spared[i, row, :len(ids)] = torch.tensor(ids)
    return {"rows": rows, "slots": slots, "spared": spared}


def places_in(grid, device):
    """int64 [t * h * w, 3]."""
    t, h, w = grid
    axes = (SECONDS * torch.arange(t, device=device), torch.arange(h, device=device), torch.arange(w, device=device))
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).view(-1, 3)


def lay_out(packed, grids, unseen):
    """The batch that `Lance.forward` takes: ids, targets, positions, mask. `grids`: of the slots that the samples
    have; `unseen` rows follow where none of them is a latent."""
    rows, slots = packed["rows"].long(), packed["slots"].long()
    n, length = rows.shape[:2]
    positions, segments, causal = [rows[..., 1:4]], [rows[..., 4]], [rows[..., 5].bool()]

    def add(places, segment):
        positions.append(places)
        segments.append(segment.expand(n, places.shape[1]))
        causal.append(torch.zeros(n, places.shape[1], dtype=torch.bool, device=rows.device))

    for name in (slot for slot in SLOTS if slot in grids):
        where = slots[:, SLOTS.index(name)]
        add(where[:, None, :3] + places_in(grids[name], rows.device), where[:, 3:])
    if not {"context", "latent"} & set(grids):
        add(rows.new_zeros(n, unseen, 3), rows.new_full((n, 1), -1))
    lengths = [part.shape[1] for part in segments[1:]]
    positions, segments, causal = (torch.cat(parts, dim=1) for parts in (positions, segments, causal))
    branches = F.pad(rows[..., 7], (0, sum(lengths)))
    order = torch.arange(length + sum(lengths), device=rows.device)

    def seen_by(first, count):
        """bool [n, count, rows]: what the rows from `first` on see."""
        mine = slice(first, first + count)
        own = segments[:, mine, None]
        sees = segments[:, None] < own
        sees |= (segments[:, None] == own) & ~(causal[:, mine, None] & (order > order[mine, None]))
        sees &= (segments[:, None] >= 0) & ((branches[:, None] == 0) | (branches[:, None] == branches[:, mine, None]))
        return sees | (order == order[mine, None])  # rows of padding see themselves

    dtype = torch.bfloat16 if rows.is_cuda else torch.float32
    # Additive and finite, as fused attention wants it; its rows lie whole pieces of 16 bytes apart, and never end where
    # the next one begins: one compiled layer serves all lengths.
    mask = torch.zeros(n, length, (len(order) // 8 + 1) * 8, dtype=dtype, device=rows.device)[..., :len(order)]
    mask = mask.masked_fill_(~seen_by(0, length), HIDDEN)
    # All rows of a slot see the same: columns of keys and queries whose products hide the rest.
    hides = torch.zeros(n, len(order), COLUMNS, dtype=dtype, device=rows.device)
    hidden = torch.zeros(sum(lengths), COLUMNS, dtype=dtype, device=rows.device)
    first = 0
    for column, count in enumerate(lengths):
        hides[..., column].masked_fill_(~seen_by(length + first, 1)[:, 0], HIDDEN)
        hidden[first:first + count, column] = 1
        first += count
    return {"ids": rows[..., 0], "targets": rows[..., 6], "positions": positions.clamp(min=0),
            "mask": (mask, hidden, hides)}
