"""What one training step of the clip demo learns from. Clips whose latents are needed are a pool, numbered within
each size and length, encoded once (train_clips.py); wordings, questions and what is left out are drawn anew at each
use. The same seed, step and number give the same, whichever worker makes it."""
import itertools
import random

import torch

import auxiliary
import clip_render
import clip_rollout
import clip_sequence
import clips
import vocabulary

MERGES, PADDED = 420, 704  # of the tokenizer; rows of the embedding table: 256 bytes, the merges, 22 added tokens
POOL = {"t2v": 56000, "i2v": 48000, "edit": 36000}  # clips, of all shapes together
ROWS = {"t2v": 20000, "i2v": 48000, "edit": 48000, "x2t": 22000}  # of a step, of that kind
TURNS = ("i2v", "edit", "i2v", "i2v", "x2t", "i2v", "edit", "i2v")  # what a step has beside clips from text
LENGTH = {"t2v": 112, "i2v": 112, "edit": 136, "x2t": 184}  # text rows of a sample
DROPPED = 0.1  # of the captions, for classifier-free guidance
FREE = 0.4  # of the captions of clips from text: in other words (clips.free_caption)
STRETCHED = 0.3  # of the clips that are read: shown at less than 12 frames a second, so that frames come twice
STRANGE = 0.4  # of the clips that are asked about: their things have no names
# Of the things in clips that continue a picture or are edited: of a colour, or a shape, without a name.
TINTED, MORPHED = 0.35, 0.35
PAIRED = 0.8  # of these clips: with two things
TILTED = 0.3  # of these things
SPUN = 2  # how often a thing to be painted spins (clips.sample_motion)
UNMOVED = tuple(motion for motion in clips.MOTIONS if motion != clips.APPEARS)

# What the vision tower gets of a clip, by its width and height: the bucket, and what is left of it.
SEEN = {(128, 128): ((144, 144), (140, 140)), (144, 112): ((176, 128), (168, 112)),
        (112, 144): ((128, 176), (112, 168)), (176, 96): ((192, 112), (168, 112)),
        (96, 176): ((112, 192), (112, 168))}


def grid_of(size, frames):
    return (frames - 1) // 4 + 1, size[1] // 16, size[0] // 16


def seen_grid(size, frames):
    width, height = SEEN[size][1]
    return (frames + 1) // 2, height // 28, width // 28


def pool_sizes(scale=1.0):
    """{kind: {(size, frames): clips}}."""
    pools = {}
    for kind, total in POOL.items():
        listed = [(size, frames, weight) for size, frames, weight in clips.SHAPES_OF_CLIPS
                  if kind == "t2v" or size in clips.BUCKETS]
        whole = sum(weight for _, _, weight in listed)
        pools[kind] = {(size, frames): max(4, round(scale * total * weight / whole))
                       for size, frames, weight in listed}
    return pools


def clip_of_pool(seed, kind, shape, number):
    """t2v: (spec, clip); i2v: clip; edit: ClipEdit."""
    rng = random.Random(f"{seed} {kind} {shape} {number}")
    size, frames = shape
    if kind == "t2v":
        spec = clips.sample_spec(rng, spun=SPUN)
        return spec, clips.arrange(rng, spec, *size, frames)
    if kind == "i2v":
        things = 2 if rng.random() < PAIRED else 1
        clip = clips.sample_loose(rng, *size, frames, whole_way=True, motions=UNMOVED, things=things, morphs=MORPHED,
                                  spun=SPUN)[1]
        return clips.tilted(rng, clips.tinted(rng, clip, TINTED), TILTED)
    while True:
        things = 2 if rng.random() < PAIRED else 1
        clip = clips.sample_loose(rng, *size, filmed(rng, frames), things=things, morphs=MORPHED, spun=SPUN)[1]
        edit = clips.sample_edit(rng, clips.tilted(rng, clips.tinted(rng, clip, TINTED), TILTED))
        if edit:
            return edit


def filmed(rng, frames):
    """Frames of a clip of which `frames` are read."""
    return max(9, round(frames * rng.choice((8, 9, 10)) / 12)) if rng.random() < STRETCHED else frames


def frame_numbers(films, frames):
    """float32 [n, frames]: those that are read, and [n, 1]: of how many."""
    count = torch.tensor([float(clip.frames) for clip in films]).view(-1, 1)
    numbers = torch.floor(torch.arange(frames) * ((count - 1) / (frames - 1)))
    numbers[:, -1:] = count - 1
    return numbers, count


def drawn(films, frames):
    """What clip_render.frames needs of them."""
    numbers, count = frame_numbers(films, frames)
    return {"films": clip_render.pack(films), "numbers": numbers, "count": count}


def corpus(rng, count=12000):
    for index in range(count):
        size, frames = clips.clip_shape(rng, True)
        spec, clip = clips.sample_loose(rng, *size, frames)
        yield clips.caption(rng, spec)
        yield clips.free_caption(rng, spec)
        yield " ".join(next(clips.sample_questions(rng, clip))[:2])
        yield clips.continuation(rng, clip)
        edit = clips.sample_edit(rng, clip)
        if edit:
            yield clips.edit_words(rng, edit)
        if index % 20 == 0:
            for system in clip_sequence.SYSTEM.values():
                yield f"system\n{system}"
            yield "user\nassistant\n"


class Blocks(torch.utils.data.Dataset):
    """The pool in blocks of one kind and shape: `first` number, and what is drawn of them: `before` and, of edits,
    `after`. Part `rank` of `ranks`."""

    def __init__(self, seed, scale, rank=0, ranks=1, length=128):
        self.seed = seed
        self.blocks = [(kind, shape, first, min(length, count - first))
                       for kind, shapes in pool_sizes(scale).items() for shape, count in shapes.items()
                       for first in range(0, count, length)][rank::ranks]

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        torch.set_num_threads(1)
        kind, shape, first, count = self.blocks[index]
        made = [clip_of_pool(self.seed, kind, shape, number) for number in range(first, first + count)]
        before = [{"t2v": lambda m: m[1], "i2v": lambda m: m, "edit": lambda m: m.before}[kind](m) for m in made]
        block = {"kind": kind, "shape": shape, "first": first, "before": drawn(before, shape[1])}
        if kind == "edit":
            block["after"] = drawn([edit.after for edit in made], shape[1])
        return block


class Steps(torch.utils.data.Dataset):
    """Step number -> the clips' `shape`, and per kind of sample the packed sequences with the `numbers` in the pool
    that they are made of and, where they are looked at, what to draw. Of `ranks` processes that share the rows, the
    part of `rank`."""

    def __init__(self, folder, steps, seed, scale, rows=1.0, rank=0, ranks=1):
        self.folder, self.steps, self.seed = folder, steps, seed
        self.rows, self.rank = rows / ranks, rank
        self.pool = pool_sizes(scale)
        self.tokenizer = None

    def __len__(self):
        return self.steps

    def __getitem__(self, step):
        if self.tokenizer is None:  # in the worker
            torch.set_num_threads(1)
            self.tokenizer = vocabulary.Vocabulary(self.folder, PADDED)
        rng = random.Random(f"{self.seed} {step}")
        shape = clips.clip_shape(rng)
        kinds = ["t2v"] + ([TURNS[step % len(TURNS)]] if shape[0] in clips.BUCKETS else [])
        if self.rank > 0:
            rng = random.Random(f"{self.seed} {step} {self.rank}")
        return {"shape": shape, "batches": {kind: self.make(rng, kind, shape) for kind in kinds}}

    def make(self, rng, kind, shape):
        size, frames = shape
        grid = grid_of(*shape)
        rows = LENGTH[kind] + grid[0] * grid[1] * grid[2] * {"edit": 2, "x2t": 0}.get(kind, 1)
        if kind in ("edit", "x2t"):
            seen = seen_grid(*shape)
            rows += seen[0] * seen[1] * seen[2]
        if kind in clip_rollout.KINDS:
            rows *= clip_rollout.ROWS
        count = max(2, round(self.rows * ROWS[kind] / rows))
        samples, numbers, films, facts = [], [], [], []
        while len(samples) < count:
            number = rng.randrange(self.pool[kind][shape]) if kind in self.pool else 0
            sample, film, known = self.sample(rng, kind, shape, number)
            if len(sample.rows) > LENGTH[kind]:
                continue
            samples.append(sample)
            numbers.append(number)
            films.append(film)
            facts.append(known)
        packed = clip_sequence.collate(samples, LENGTH[kind], PADDED - 1)
        if kind in self.pool:
            packed["pool"] = torch.tensor(numbers)
            packed["facts"] = torch.stack(facts)
        if kind in ("edit", "x2t"):
            packed.update(drawn(films, frames))
        return packed

    def sample(self, rng, kind, shape, number):
        """(sample, the clip that it looks at, what its latents' rows are to know)."""
        size, frames = shape
        dropped = rng.random() < DROPPED
        grid = grid_of(*shape)
        if kind == "t2v":
            spec, clip = clip_of_pool(self.seed, kind, shape, number)
            words = (clips.free_caption if rng.random() < FREE else clips.caption)(rng, spec)
            return clip_sequence.painted(self.tokenizer, words, grid, dropped), None, \
                auxiliary.facts(clip, dropped)
        if kind == "i2v":
            clip = clip_of_pool(self.seed, kind, shape, number)
            return clip_sequence.painted(self.tokenizer, clips.continuation(rng, clip), grid, dropped), None, \
                auxiliary.facts(clip, dropped)
        if kind == "edit":
            edit = clip_of_pool(self.seed, kind, shape, number)
            return clip_sequence.edited(self.tokenizer, clips.edit_words(rng, edit), grid, seen_grid(*shape),
                                        dropped), edit.before, auxiliary.facts(edit.before, dropped, edit)
        strange = rng.random() < STRANGE
        clip = None
        while clip is None or not clips.is_seen(clip.things):
            clip = clips.sample_strange(rng, *size, filmed(rng, frames)) if strange else \
                clips.sample_loose(rng, *size, filmed(rng, frames))[1]
        questions = itertools.islice(clips.sample_questions(rng, clip), 20)
        return clip_sequence.asked(self.tokenizer, questions, seen_grid(*shape), LENGTH[kind]), clip, None
