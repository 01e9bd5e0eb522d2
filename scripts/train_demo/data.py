"""What one training step learns from: scenes, alone or before and after an edit, and the samples made
of them. The scenes are a pool, numbered within each picture size, whose latents are computed once
(train.py); wordings, questions and what is left out are drawn anew at each use. The same seed, step
and number give the same, whichever worker makes it."""
import random

import torch

import edits
import render
import sequence
import vocabulary
import world

SAMPLES = 96  # of pictures painted from captions per step at the reference size; fewer of larger ones
POOL = 180000  # scenes, of all sizes together
LOOSE = 0.4  # of the questions: those about loose scenes, at least
EDITED = 2  # every second of the pool has edits; the others are painted
EDITS = 3  # so many each: where a picture had one, the model learned by heart which
SHORT, LONG = 48, 136  # text rows of samples; long: with a plan, or several questions
CHAT_SHARE = 0.04  # of the questions: those without a picture
WORDS_FIRST = 0.12  # of samples with a picture: those whose text comes before it
MISTAKEN = 0.1  # of the captions: those that err in a colour or a shape, as people's do; guidance takes it back

# What a step has beside the pictures painted from captions, in turns, and how many samples of it for
# one of those. Few kinds a step: each of their combinations is a CUDA graph (train.py).
TURNS = (("edit", 1.3), ("understand", 0.9), ("edit", 1.3), ("think_edit", 1.1), ("edit", 1.3),
         ("think", 0.9), ("edit", 1.3), ("think_edit", 1.1), ("edit", 1.3), ("understand", 0.9),
         ("edit", 1.3), ("think_understand", 0.9), ("edit", 1.3), ("think_edit", 1.1), ("edit", 1.3),
         ("think", 0.9), ("edit", 1.3), ("understand", 0.9), ("think_edit", 1.1), ("edit", 1.3),
         ("think", 0.9))

# Contexts left out, for classifier-free guidance.
DROP_TEXT, DROP_IMAGES, DROP_BOTH = 0.1, 0.08, 0.03


def pool_sizes(total):
    """{(width, height): (scenes, edits)} of the pool."""
    counts = {size: max(8 * EDITED, round(share * total)) for size, share in world.PICTURE_SIZES}
    return {size: (count, EDITS * len(range(0, count, EDITED))) for size, count in counts.items()}


# What is at a number of the pool, by the number modulo 8: the even ones have edits. Other people's
# pictures are loose.
POOL_LAYOUTS = ("loose", "arranged", "arranged", "composed", "loose", "arranged", "loose", "arranged")
PAINTED = {"t2i": ("arranged",), "think": ("arranged", "composed")}  # what captions are painted as


def layout_of(number):
    return POOL_LAYOUTS[number % len(POOL_LAYOUTS)]


def scene_of_pool(seed, size, number):
    """(spec, scene) of a number that is no multiple of EDITED."""
    return world.sample_scene(random.Random(f"{seed} {size} {number}"), *size, layout=layout_of(number))


def edits_of_pool(seed, size, number):
    """The EDITS edits of a number that is a multiple of EDITED, all of one scene."""
    rng = random.Random(f"{seed} {size} {number}")
    while True:
        scene = world.sample_scene(rng, *size, layout=layout_of(number))[1]
        found = [edits.sample_any(rng, scene, kinds=edits.LEARNED_KINDS) for _ in range(EDITS)]
        if None not in found:
            return found


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
                said = world.mistaken(rng, spec) if rng.random() < MISTAKEN else spec
                sample.text(world.caption(rng, said))
            sample.image("latent")

        return self.fitting(build)

    def think(self, rng, spec, scene):
        def build(sample):
            sample.text(sequence.GEN_THINK_SYSTEM_PROMPT)
            if rng.random() >= DROP_TEXT:
                sample.text(world.caption(rng, spec))
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
                sample.text(edits.words(rng, edit))
            if images:
                sample.image("context").image("vit")
            if words and not words_first:
                sample.text(edits.words(rng, edit))
            if think and images and words:
                sample.text(world.plan(edit.after), learned=True)
            sample.image("latent")
            return think

        return self.fitting(build)

    def understand(self, rng, scene, think=False):
        """As many questions as there are rows for, each in a branch of its own."""
        trunk = sequence.Sample(self.tokenizer)
        if not think and rng.random() < CHAT_SHARE:
            question, answer = rng.choice(world.CHAT)
            return trunk.text(world.polite(rng, question)).text(answer, learned=True)
        if think:
            trunk.text(sequence.VLM_THINK_SYSTEM_PROMPT)
        if rng.random() < WORDS_FIRST:
            question, answer = self.ask(rng, scene, think)
            return trunk.text(question).image("vit").text(answer, learned=True)
        sample = trunk.image("vit").copy()
        number = 0
        while True:
            number += 1
            longer = sample.copy().branched(trunk, number)
            question, answer = self.ask(rng, scene, think)
            longer.text(question).text(answer, learned=True)
            if len(longer.rows) > LONG:
                return sample
            sample = longer

    @staticmethod
    def ask(rng, scene, think):
        question, answer = world.sample_any_question(rng, scene)
        return question, world.plan(scene) + " " + answer if think else answer


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
    """The pool in blocks of one picture size, of as many as EDITED divides: `first` number, and rows
    for `render`: of the scenes, `before`, and of their edits, `after`. Part `rank` of `ranks`."""

    def __init__(self, pool, seed, rank=0, ranks=1, length=256):
        self.seed = seed
        self.blocks = [(size, first, min(length, count - first))
                       for size, (count, _) in pool_sizes(pool).items()
                       for first in range(0, count, length)][rank::ranks]

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        torch.set_num_threads(1)
        size, first, count = self.blocks[index]
        numbers = range(first, first + count)
        changes = {n: edits_of_pool(self.seed, size, n) for n in numbers if n % EDITED == 0}
        before = [changes[n][0].before if n in changes else scene_of_pool(self.seed, size, n)[1]
                  for n in numbers]
        after = [edit.after for found in changes.values() for edit in found]
        return {"size": size, "first": first, "before": render.pack(before),
                "after": render.pack(after)}


class Steps(torch.utils.data.Dataset):
    """Step number -> the picture `size`, and per kind of sample the packed sequences with the pool's
    `numbers` that they are made of, those of their `results` among the pool's edits and, where they
    read pictures, `scenes` as rows for `render`. Shapes depend on the size and the kinds alone. All
    are int16 but `numbers`, `results` and `scenes`. Of `ranks` processes that share the samples, the
    part of `rank`."""

    def __init__(self, folder, steps, seed, samples, pool, rank=0, ranks=1):
        self.folder, self.steps, self.seed, self.samples = folder, steps, seed, samples
        self.rank, self.ranks = rank, ranks
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
        count = max(4, round(self.samples / area))
        kind, share = TURNS[step % len(TURNS)]
        if self.rank > 0:
            rng = random.Random(f"{self.seed} {step} {self.rank}")
        return {"size": size, "batches": {name: self.make(rng, name, size, -(-number // self.ranks))
                                          for name, number in (("t2i", count), (kind, round(share * count)))}}

    def make(self, rng, kind, size, count):
        numbers, results, samples, scenes = [], [], [], []
        while len(numbers) < count:
            number = rng.randrange(self.pool[size][0])
            if "edit" in kind:
                number -= number % EDITED
            elif "understand" in kind:
                number -= number % len(POOL_LAYOUTS) if rng.random() < LOOSE else 0
            elif number % EDITED == 0 or layout_of(number) not in PAINTED[kind]:
                continue
            which = rng.randrange(EDITS)
            sample, scene = self.sample(rng, kind, size, number, which)
            numbers.append(number)
            results.append(number // EDITED * EDITS + which)
            samples.append(sample)
            scenes.append(scene)
        thinks = kind.startswith("think")
        packed = sequence.collate(samples, LONG if thinks or kind == "understand" else SHORT)
        packed["numbers"] = torch.tensor(numbers)
        if "edit" in kind:
            packed["results"] = torch.tensor(results)
        if "edit" in kind or "understand" in kind:
            packed["scenes"] = render.pack(scenes)
        return packed

    def sample(self, rng, kind, size, number, which):
        """(sample, the scene that it reads); `which` of its edits, where the kind is one."""
        thinks = kind.startswith("think")
        if number % EDITED == 0:
            edit = edits_of_pool(self.seed, size, number)[which]
            if "edit" in kind:
                return self.maker.edit(rng, edit, thinks), edit.before
            return self.maker.understand(rng, edit.before, thinks), edit.before
        spec, scene = scene_of_pool(self.seed, size, number)
        if "understand" in kind:
            return self.maker.understand(rng, scene, thinks), scene
        return (self.maker.think(rng, spec, scene) if thinks else self.maker.t2i(rng, spec)), scene
