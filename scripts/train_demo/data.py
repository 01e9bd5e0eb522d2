"""What one training step learns from: pairs of scenes (before and after an edit) and the samples
made of them. The pairs are a pool, numbered within each picture size, whose latents are computed once
(train.py); wordings, questions and what is left out are drawn anew at each use. The same seed, step
and number give the same, whichever worker makes it."""
import dataclasses
import random

import torch

import render
import sequence
import vocabulary
import world

PAIRS = 320  # per step at the reference size; fewer of larger pictures
POOL = 120000  # pairs, of all sizes together
SHORT, LONG = 48, 136  # text rows of samples without and with think mode
CHAT_SHARE = 0.04  # of the questions: those without a picture
WORDS_FIRST = 0.12  # of samples with a picture: those whose text comes before it

# What a step has beside the pictures painted from captions (both of every pair), in turns, and how
# many samples of it per pair. Few kinds a step: launching the work takes longer than the work.
TURNS = (("edit", 1.0), ("understand", 1.0), ("think", 0.75), ("edit", 1.0), ("understand", 1.0),
         ("think", 0.75), ("edit", 1.0), ("think_edit", 0.5), ("think_understand", 0.6))

# Contexts left out, for classifier-free guidance.
DROP_TEXT, DROP_IMAGES, DROP_BOTH = 0.1, 0.08, 0.03


@dataclasses.dataclass
class Pair:
    spec: world.Spec
    before: world.Scene
    edit: world.Edit | None  # None: `after` is a scene of its own
    after_spec: world.Spec
    after: world.Scene


def pool_sizes(total):
    """{(width, height): pairs} of the pool."""
    return {size: max(8, round(share * total)) for size, share in world.PICTURE_SIZES}


def pair_of_pool(seed, size, number):
    rng = random.Random(f"{seed} {size} {number}")
    spec, before = world.sample_scene(rng, *size)
    edit = world.sample_any_edit(rng, before)
    if edit is not None:
        after = edit.after
        return Pair(spec, before, edit, loosen(rng, world.spec_of(after)), after)
    return Pair(spec, before, None, *world.sample_scene(rng, *size))


def loosen(rng, spec):
    """The full description of a scene, with some of it left unsaid."""
    groups = tuple(dataclasses.replace(g, size=g.size if rng.random() < 0.6 else None)
                   for g in spec.groups)
    if len(groups) == 2 and rng.random() < 0.5 and spec.relation in world.OPPOSITE:
        return world.Spec(groups[::-1], world.OPPOSITE[spec.relation],
                          spec.background if rng.random() < 0.8 else None)
    return world.Spec(groups, spec.relation, spec.background if rng.random() < 0.8 else None)


def say(rng, spec):
    if not spec.groups:
        return f"a {spec.background or 'plain'} background"
    return world.caption(rng, spec)



class Maker:
    """Samples of each kind; a wording that is longer than the batch has rows for is said anew."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def fitting(self, build):
        while True:
            sample = sequence.Sample(self.tokenizer)
            rows = LONG if build(sample) else SHORT
            if len(sample.rows) <= rows:
                return sample

    def t2i(self, rng, spec):
        def build(sample):
            if rng.random() >= DROP_TEXT:
                sample.text(say(rng, spec))
            sample.image("latent")

        return self.fitting(build)

    def think(self, rng, spec, scene):
        def build(sample):
            sample.text(sequence.GEN_THINK_SYSTEM_PROMPT)
            if rng.random() >= DROP_TEXT:
                sample.text(say(rng, spec))
                sample.text(world.plan(scene, in_said_order(spec, scene)), learned=True)
            sample.image("latent")
            return True

        return self.fitting(build)

    def edit(self, rng, edit, think=False):
        chance = rng.random()
        images = chance >= DROP_IMAGES + DROP_BOTH
        words = not DROP_IMAGES <= chance < DROP_IMAGES + DROP_BOTH and rng.random() >= DROP_TEXT
        words_first = words and rng.random() < WORDS_FIRST

        def build(sample):
            if think:
                sample.text(sequence.GEN_THINK_SYSTEM_PROMPT)
            if words_first:
                sample.text(edit.text)
            if images:
                sample.image("context").image("vit")
            if words and not words_first:
                sample.text(edit.text)
            if think and images and words:
                sample.text(world.plan(edit.after), learned=True)
            sample.image("latent")
            return think

        return self.fitting(build)

    def understand(self, rng, scene, think=False):
        def build(sample):
            if not think and rng.random() < CHAT_SHARE:
                question, answer = rng.choice(world.CHAT)
                sample.text(world.polite(rng, question)).text(answer, learned=True)
                return False
            question, answer = world.sample_any_question(rng, scene)
            if think:
                sample.text(sequence.VLM_THINK_SYSTEM_PROMPT)
                answer = world.plan(scene) + " " + answer
            if rng.random() < WORDS_FIRST:
                sample.text(question).image("vit")
            else:
                sample.image("vit").text(question)
            sample.text(answer, learned=True)
            return think

        return self.fitting(build)


def in_said_order(spec, scene):
    """The things of a scene as its caption names them, where that is known."""
    left = list(scene.things)
    ordered = []
    for group in spec.groups:
        for _ in range(group.count):
            for thing in left:
                if (thing.colour, thing.shape) == (group.colour, group.shape) and \
                        group.size in (None, thing.size):
                    ordered.append(thing)
                    left.remove(thing)
                    break
    return ordered + left


class Blocks(torch.utils.data.Dataset):
    """The pool in blocks of one picture size: `first` number, and the scenes' rows for `render`."""

    def __init__(self, pool, seed, length=256):
        self.seed = seed
        self.blocks = [(size, first, min(length, count - first))
                       for size, count in pool_sizes(pool).items()
                       for first in range(0, count, length)]

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        torch.set_num_threads(1)
        size, first, count = self.blocks[index]
        pairs = [pair_of_pool(self.seed, size, first + i) for i in range(count)]
        return {"size": size, "first": first, "before": render.pack([p.before for p in pairs]),
                "after": render.pack([p.after for p in pairs])}


class Steps(torch.utils.data.Dataset):
    """Step number -> the picture `size`, the pairs' `numbers`, their `before` and `after` as rows for
    `render`, and per kind of sample the packed sequences with `picks`, the places in `numbers` that
    they are made of, and `sides` (0: before, 1: after)."""

    def __init__(self, folder, steps, seed, pairs, pool):
        self.folder, self.steps, self.seed, self.pairs = folder, steps, seed, pairs
        self.pool = pool_sizes(pool)
        self.maker = None

    def __len__(self):
        return self.steps

    def __getitem__(self, step):
        if self.maker is None:  # in the worker
            torch.set_num_threads(1)
            self.maker = Maker(vocabulary.Vocabulary(self.folder))
        rng = random.Random(f"{self.seed} {step}")
        size = world.picture_size(rng)
        area = size[0] * size[1] / world.REFERENCE_SIDE ** 2
        count = max(4, round(self.pairs / max(area, 0.7)))
        numbers = [rng.randrange(self.pool[size]) for _ in range(count)]
        pairs = [pair_of_pool(self.seed, size, number) for number in numbers]
        make = self.maker
        captions = [make.t2i(rng, p.spec) for p in pairs] + [make.t2i(rng, p.after_spec) for p in pairs]
        batches = {"t2i": self.pack(captions, list(range(count)) * 2, [0] * count + [1] * count, SHORT)}
        kind, share = TURNS[step % len(TURNS)]
        places = [i for i, p in enumerate(pairs) if p.edit] if "edit" in kind else range(count)
        picks = rng.sample(places, max(1, min(len(places), round(share * count))))
        sides = [rng.randrange(2) if "understand" in kind else int("edit" in kind) for _ in picks]
        thinks, chosen = kind.startswith("think"), [pairs[i] for i in picks]
        if "edit" in kind:
            made = [make.edit(rng, p.edit, thinks) for p in chosen]
        elif "understand" in kind:
            made = [make.understand(rng, p.after if side else p.before, thinks)
                    for p, side in zip(chosen, sides)]
        else:
            made = [make.think(rng, p.spec, p.before) for p in chosen]
        batches[kind] = self.pack(made, picks, sides, LONG if thinks else SHORT)
        return {"size": size, "numbers": torch.tensor(numbers), "batches": batches,
                "before": render.pack([p.before for p in pairs]),
                "after": render.pack([p.after for p in pairs])}

    @staticmethod
    def pack(samples, picks, sides, length):
        packed = sequence.collate(samples, length)
        packed["picks"], packed["sides"] = torch.tensor(picks), torch.tensor(sides)
        return packed
