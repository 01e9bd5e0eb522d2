"""The clip demo's world: one or two things of world.py that move, grow, spin or stay, and the language that
speaks of them. Plain Python over a `random.Random`.

A `ClipSpec` is what a caption says; a `Clip` is one film of it. Things go through a clip in a straight line at
constant speed; radii and angles change likewise.
"""
import dataclasses
import math

import world
from world import BACKGROUNDS, COLOURS, SHAPES, SIZES, background_word, clashes

MOTIONS = ("moves from left to right", "moves from right to left", "moves up", "moves down", "grows", "shrinks",
           "spins", "appears", "disappears", "stays still")
RIGHT, LEFT, UP, DOWN, GROWS, SHRINKS, SPINS, APPEARS, DISAPPEARS, STILL = MOTIONS
HORIZONTAL, VERTICAL = (RIGHT, LEFT), (UP, DOWN)
TRAVELS = HORIZONTAL + VERTICAL
# How often training sees them. Motions of another thing are not to spread to what stays still; outlines run most where
# two things travel.
WEIGHTS = {STILL: 2, APPEARS: 1.5, DISAPPEARS: 1.5} | dict.fromkeys(TRAVELS, 2)

# (width, height), frames, and how often training sees them; sizes are those of the buckets of "video_96p"
# and, for clips from text, others between.
BUCKETS = ((128, 128), (144, 112), (112, 144), (176, 96), (96, 176))
SHAPES_OF_CLIPS = (
    ((128, 128), 17, 20), ((128, 128), 25, 24), ((128, 128), 33, 8), ((128, 128), 21, 4), ((128, 128), 29, 4),
    ((144, 112), 17, 5), ((144, 112), 25, 5), ((112, 144), 17, 5), ((112, 144), 25, 5), ((176, 96), 17, 8),
    ((96, 176), 17, 8), ((96, 96), 25, 3), ((160, 160), 17, 3), ((160, 96), 25, 3), ((96, 160), 25, 3))
REFERENCE_SIDE = 128  # things scale with the short side
MARGIN = 4.0
RADII = {1: {"small": 16.0, None: 21.0, "large": 26.0}, 2: {"small": 13.0, None: 16.5, "large": 20.0}}
GROWN = 1.3, 0.5  # of the radius: the larger and the smaller end of growing and shrinking
TURN = math.pi  # of a spin, clockwise
ROUND = ("circle", "ring")  # spinning cannot be seen
LOOSE_RADII = ((13.0, 17.5), (18.0, 27.0))


def is_held_out(thing):
    """A fifth of all pairs of colour and motion and a fifth of those of shape and motion never stand in a clip
    that training sees. Of spins that leaves out one shape's, the ring's, which cannot be seen."""
    colour, shape = list(COLOURS).index(thing.colour), SHAPES.index(thing.shape)
    motion = MOTIONS.index(thing.motion)
    return thing.tint is None and (3 * colour + motion) % 5 == 0 or \
        thing.morph is None and (3 * shape + motion) % 5 == 3


@dataclasses.dataclass(frozen=True)
class Said:
    """A thing as a caption tells of it."""
    size: str | None
    colour: str
    shape: str
    motion: str
    # Of things that have no name: red, green and blue instead of the colour; another shape, half of each. Where only
    # those are seen with a motion, a model learns to see motions apart from colours and shapes.
    tint: tuple[float, float, float] | None = None
    morph: str | None = None


@dataclasses.dataclass(frozen=True)
class ClipSpec:
    things: tuple[Said, ...]
    background: str | None = None


@dataclasses.dataclass(frozen=True)
class Moving:
    shape: str
    colour: str
    size: str | None
    motion: str
    start: tuple[float, float]
    end: tuple[float, float]
    radii: tuple[float, float]  # at the first and the last frame
    seen: tuple[float, float] = (0.0, 1e9)  # from this frame until before that one
    variant: float = 0.0
    tint: tuple[float, float, float] | None = None
    morph: str | None = None
    tilt: float = 0.0  # clockwise, at the first frame

    @property
    def turn(self):
        return TURN if self.motion == SPINS else 0.0

    @property
    def has_name(self):
        return self.tint is None and self.morph is None


@dataclasses.dataclass(frozen=True)
class Clip:
    width: int
    height: int
    frames: int
    background: str
    things: tuple[Moving, ...]


def cut_of(frames):
    """The frame at which things appear or are gone: where a latent frame begins, near the middle."""
    return 1 + 4 * ((frames - 1) // 8)


# ---------------------------------------------------------------------------------------------
# Specs and the clips that fulfil them


def sample_motion(rng, shape, motions, spun):
    """Any of them. `spun`, if not 1: the weight of a spin that can be seen; all else has the weight of `WEIGHTS` then,
    or 1."""
    if spun == 1:
        return rng.choice(motions)  # the draws of the exams
    weights = WEIGHTS | {SPINS: 1 if shape in ROUND else spun}
    return rng.choices(motions, [weights.get(motion, 1) for motion in motions])[0]


def sample_spec(rng, held_out=False, things=None, spun=1):
    """`held_out`: at least one thing is; else none. `spun`: as in `sample_motion`."""
    while True:
        background = rng.choice(tuple(BACKGROUNDS)) if rng.random() < 0.75 else None
        number = things or (1 if rng.random() < 0.5 else 2)
        said = []
        for _ in range(number):
            size = rng.choice(SIZES) if rng.random() < 0.5 else None
            colours = [c for c in COLOURS if not clashes(c, background)]
            colour, shape = rng.choice(colours), rng.choice(SHAPES)
            said.append(Said(size, colour, shape, sample_motion(rng, shape, MOTIONS, spun)))
        if number == 2 and (said[0].colour, said[0].shape) == (said[1].colour, said[1].shape):
            continue
        if any(is_held_out(thing) for thing in said) == held_out:
            return ClipSpec(tuple(said), background)


def is_seen(things):
    """Whether all that these things do can be seen."""
    return not any(thing.motion == SPINS and {thing.shape, thing.morph or thing.shape} <= set(ROUND)
                   for thing in things)


def path_in(box, motion, radius, scale):
    """Start and end of a centre that keeps within `box` (left, top, right, bottom)."""
    left, top, right, bottom = box
    edge = 1.08 * radius + MARGIN * scale
    middle = (left + right) / 2, (top + bottom) / 2
    if motion in HORIZONTAL:
        ends = (left + edge, middle[1]), (right - edge, middle[1])
        return ends if motion == RIGHT else ends[::-1]
    if motion in VERTICAL:
        ends = (middle[0], top + edge), (middle[0], bottom - edge)
        return ends if motion == DOWN else ends[::-1]
    return middle, middle


def boxes_of(motions, width, height):
    """A part of the picture for each of two things: beside each other or stacked, whichever leaves their ways
    longer."""
    across = [m in HORIZONTAL for m in motions]
    along = [m in VERTICAL for m in motions]
    if any(across) and any(along):  # the one that goes up or down needs no width
        split = (0.38 if along[0] else 0.62) * width
    elif any(along) or not any(across) and width >= height:
        split = width / 2
    else:
        return (0, 0, width, height / 2), (0, height / 2, width, height)
    return (0, 0, split, height), (split, 0, width, height)


def radii_of(motion, radius):
    ends = radius * GROWN[0], radius * GROWN[1]
    return ends[::-1] if motion == GROWS else ends if motion == SHRINKS else (radius, radius)


def seen_of(motion, cut):
    return (cut, 1e9) if motion == APPEARS else (0.0, cut) if motion == DISAPPEARS else (0.0, 1e9)


def arrange(rng, spec, width, height, frames):
    """The one clip of a spec, but for the background where that is left open: a painter of little capacity would
    mix several."""
    background = spec.background
    if background is None:
        colours = {thing.colour for thing in spec.things}
        background = "white" if "white" not in colours else "gray"
    scale = min(width, height) / REFERENCE_SIDE
    boxes = ((0, 0, width, height),) if len(spec.things) == 1 else \
        boxes_of([thing.motion for thing in spec.things], width, height)
    things = []
    for said, box in zip(spec.things, boxes):
        radius = RADII[len(spec.things)][said.size] * scale
        things.append(Moving(said.shape, said.colour, said.size, said.motion,
                             *path_in(box, said.motion, radius, scale), radii_of(said.motion, radius),
                             seen_of(said.motion, cut_of(frames))))
    return Clip(width, height, frames, background, tuple(things))


def swept(thing):
    r = 1.08 * max(thing.radii)
    (x0, y0), (x1, y1) = thing.start, thing.end
    return min(x0, x1) - r, min(y0, y1) - r, max(x0, x1) + r, max(y0, y1) + r


def disjoint(a, b, gap):
    return a[2] + gap < b[0] or b[2] + gap < a[0] or a[3] + gap < b[1] or b[3] + gap < a[1]


def film(rng, said, width, height, frames, whole_way):
    """A loose `Moving`: anywhere, of any radius; `whole_way`: a way ends at the border, an end of growing or
    shrinking is fixed by its beginning, and things go at the cut: what a clip that continues a picture needs."""
    scale = min(width, height) / REFERENCE_SIDE
    radius = rng.uniform(*rng.choice(LOOSE_RADII)) * scale
    radii = (radius, radius)
    if said.motion in (GROWS, SHRINKS):
        radius *= 1.0 if radius < 15 * scale else 0.75
        ratio = 2.2 if whole_way else rng.uniform(1.6, 2.6)
        radii = (radius, radius * ratio) if said.motion == GROWS else (radius * 1.5, radius * 1.5 / ratio)
    largest = max(radii)
    edge = 1.08 * largest + MARGIN * scale
    if 2 * edge >= min(width, height):
        return None
    x, y = rng.uniform(edge, width - edge), rng.uniform(edge, height - edge)
    start = end = x, y
    if said.motion in TRAVELS:
        axis = 0 if said.motion in HORIZONTAL else 1
        length = (width, height)[axis]
        low, high = edge, length - edge
        least = min(0.25 * length, 0.8 * (high - low))
        a = rng.uniform(low, high - least)
        b = high if whole_way else rng.uniform(a + least, high)
        if said.motion in (LEFT, UP):
            a, b = length - a, length - b
        start, end = ((a, y), (b, y)) if axis == 0 else ((x, a), (x, b))
    cut = cut_of(frames) if whole_way else rng.randrange(int(0.3 * frames), int(0.7 * frames) + 1)
    return Moving(said.shape, said.colour, None, said.motion, start, end, radii, seen_of(said.motion, cut),
                  rng.uniform(-1, 1), said.tint, said.morph)


def shoot(rng, spec, width, height, frames, whole_way=False):
    """A loose clip of a spec; None where a few tries found no room."""
    background = spec.background or rng.choice(
        [b for b in BACKGROUNDS if not any(clashes(thing.colour, b) for thing in spec.things)])
    for _ in range(60):
        things = [film(rng, said, width, height, frames, whole_way) for said in spec.things]
        if None in things:
            continue
        if len(things) == 2 and not disjoint(swept(things[0]), swept(things[1]), 4):
            continue
        return Clip(width, height, frames, background, tuple(things))
    return None


def estranged(rng, said):
    """Some of what has a name taken from a thing, and any motion that is not held out then."""
    tint = tuple(rng.uniform(0, 255) for _ in range(3)) if rng.random() < 0.6 else None
    morph = rng.choice([s for s in SHAPES if s != said.shape]) if tint is None or rng.random() < 0.6 else None
    while True:
        thing = dataclasses.replace(said, motion=rng.choice(MOTIONS), tint=tint, morph=morph)
        if not is_held_out(thing):
            return thing


def stands_out(thing, background):
    return thing.tint is None or math.dist(thing.tint, BACKGROUNDS[background]) >= 90


def sample_strange(rng, width, height, frames):
    """A clip with things that have no name."""
    while True:
        spec = sample_spec(rng)
        spec = dataclasses.replace(spec, things=tuple(estranged(rng, t) for t in spec.things))
        clip = shoot(rng, spec, width, height, frames)
        if clip and all(stands_out(thing, clip.background) for thing in clip.things):
            return clip


def morphed(rng, spec, share, motions, spun):
    """The spec with this share of its things half in another shape, and then with any motion that is not held out: what
    carries an outline on should not depend on the shape. They can still be told from each other by their colours."""
    things = []
    for said in spec.things:
        alone = sum(t.colour == said.colour for t in spec.things) == 1
        if alone and rng.random() < share:
            said = dataclasses.replace(said, morph=rng.choice([s for s in SHAPES if s != said.shape]))
            free = [m for m in motions if not is_held_out(dataclasses.replace(said, motion=m))]
            angular = said.morph if said.shape in ROUND else said.shape
            said = dataclasses.replace(said, motion=sample_motion(rng, angular, free, spun))
        things.append(said)
    return dataclasses.replace(spec, things=tuple(things))


def tinted(rng, clip, share):
    """The clip with so many of its things in colours that have no name: what carries a colour on, or puts another in
    its place, does not ask which it is. They can still be told from each other by their shapes, which must have
    names."""
    things = []
    for thing in clip.things:
        alone = thing.morph is None and sum(t.shape == thing.shape for t in clip.things) == 1
        changed = dataclasses.replace(thing, tint=tuple(rng.uniform(0, 255) for _ in range(3)))
        take = alone and rng.random() < share and stands_out(changed, clip.background)
        things.append(changed if take else thing)
    return dataclasses.replace(clip, things=tuple(things))


def tilted(rng, clip, share):
    """The clip with this share of its things turned by a random angle."""
    return dataclasses.replace(clip, things=tuple(
        dataclasses.replace(thing, tilt=rng.uniform(0, 2 * math.pi)) if rng.random() < share else thing
        for thing in clip.things))


def sample_loose(rng, width, height, frames, held_out=False, whole_way=False, motions=MOTIONS, things=None, morphs=0.0,
                 spun=1):
    """(spec, clip) of things with these motions; `morphs`: the share that is half of another shape; `spun`: as in
    `sample_motion`."""
    while True:
        spec = sample_spec(rng, held_out, things, spun)
        if morphs:
            spec = morphed(rng, spec, morphs, motions, spun)
        if all(thing.motion in motions for thing in spec.things):
            clip = shoot(rng, spec, width, height, frames, whole_way)
            if clip:
                return spec, clip


# ---------------------------------------------------------------------------------------------
# Captions

VERBS = (("moves", "moving"), ("slides", "sliding"), ("travels", "travelling"), ("goes", "going"),
         ("glides", "gliding"), ("drifts", "drifting"))
WAYS = {
    RIGHT: ("from left to right", "from left to right", "from left to right", "from the left to the right",
            "to the right", "right", "rightwards"),
    LEFT: ("from right to left", "from right to left", "from right to left", "from the right to the left",
           "to the left", "left", "leftwards"),
    UP: ("up", "up", "up", "upwards", "upward", "from bottom to top", "to the top"),
    DOWN: ("down", "down", "down", "downwards", "downward", "from top to bottom", "to the bottom"),
}
DEEDS = {
    GROWS: (("grows", "growing"), ("grows", "growing"), ("grows larger", "growing larger"),
            ("gets bigger", "getting bigger"), ("gets larger", "getting larger"),
            ("becomes larger", "becoming larger"), ("expands", "expanding")),
    SHRINKS: (("shrinks", "shrinking"), ("shrinks", "shrinking"), ("gets smaller", "getting smaller"),
              ("becomes smaller", "becoming smaller"), ("contracts", "contracting")),
    SPINS: (("spins", "spinning"), ("spins", "spinning"), ("rotates", "rotating"),
            ("spins around", "spinning around"), ("turns around", "turning around")),
    APPEARS: (("appears", "appearing"), ("appears", "appearing"), ("shows up", "showing up"),
              ("pops up", "popping up"), ("comes into view", "coming into view")),
    DISAPPEARS: (("disappears", "disappearing"), ("disappears", "disappearing"), ("vanishes", "vanishing"),
                 ("goes away", "going away")),
    STILL: (("stays still", "staying still"), ("stays still", "staying still"), ("stands still", "standing still"),
            ("remains still", "remaining still"), ("stays in place", "staying in place"),
            ("does not move", "not moving")),
}


def deed_forms(rng, motion):
    """What a thing does, as "moves up" and as "moving up"."""
    if motion in WAYS:
        verb = VERBS[0] if rng.random() < 0.7 else rng.choice(VERBS)
        if motion in VERTICAL and rng.random() < 0.06:
            return ("rises", "rising") if motion == UP else ("falls", "falling")
        way = rng.choice(WAYS[motion])
        return f"{verb[0]} {way}", f"{verb[1]} {way}"
    return rng.choice(DEEDS[motion])


def deed(rng, motion):
    """Behind a thing's name: "moves up", "is moving up", "moving up"."""
    does, doing = deed_forms(rng, motion)
    if rng.random() < 0.72:
        return does
    return ("is " if rng.random() < 0.5 else "") + doing


def noun(rng, said):
    words = [rng.choice(world.SIZE_WORDS[said.size])] if said.size else []
    words = " ".join(words + [said.colour, said.shape])
    chance = rng.random()
    return f"one {words}" if chance < 0.02 else f"the {words}" if chance < 0.06 else world.with_article(words)


def caption(rng, spec):
    """One of the many ways to say it."""
    said = [f"{noun(rng, thing)} {deed(rng, thing.motion)}" for thing in spec.things]
    text = said[0]
    if len(said) == 2:
        chance = rng.random()
        text = f"{said[0]} while {said[1]}" if chance < 0.75 else f"{said[0]} and {said[1]}" if chance < 0.93 \
            else f"{said[0]}, {said[1]}"
    if spec.background:
        if rng.random() < 0.06:
            text = f"on a {background_word(rng, spec.background)} background, {text}"
        else:
            text += world.background_words(rng, spec.background)
    if rng.random() < 0.1:
        text = rng.choice(("a video of ", "a clip of ", "a video in which ", "an animation of ", "a short clip: ",
                           "make a video of ", "show ")) + text
    return finished(rng, text)


OPENINGS = ("here is ", "I want ", "imagine ", "paint ", "draw ", "give me ", "let us see ", "this is ", "picture ", "now ",
            "I would like ", "look at ", "in this clip ", "a movie with ", "a scene: ", "please make ", "create ", "render ")
JOINED = (" and ", " and ", " and ", ", and ", " next to ", " as well as ", " together with ", " plus ")
# Of a thing and of what it does.
FORMS = ("{it} which {does}", "{it} which {does}", "{it}, which {does}", "{it} {doing}", "{it} as it {does}", "{it} which is {doing}")


def babble(rng):
    """Words that nobody knows, to be read over."""
    return "".join("".join(rng.choices("abcdefghiklmnoprstuvwy", k=rng.randint(1, 7))) + " " for _ in range(rng.randint(1, 4)))


def free_caption(rng, spec):
    """In other words than `caption` has: who has read many wordings understands a new one."""
    form, parts = rng.choice(FORMS), []
    for thing in spec.things:
        does, doing = deed_forms(rng, thing.motion)
        parts.append(form.format(it=noun(rng, thing), does=does, doing=doing))
    text = rng.choice(JOINED).join(parts)
    chance = rng.random()
    opening = rng.choice(OPENINGS) if chance < 0.5 else babble(rng) if chance < 0.7 else ""
    if spec.background:
        where = f"{rng.choice(('on', 'on', 'on', 'over', 'before'))} a {background_word(rng, spec.background)} background"
        text = rng.choice((f"{opening}{text} {where}", f"{opening}{text} {where}", f"{where} is {text}",
                           f"{where} {opening}{text}", f"{where}, {opening}{text}", f"{opening}{text}, {where}"))
    else:
        text = opening + text
    return finished(rng, text)


def finished(rng, text):
    if rng.random() < 0.2:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.2:
        text += "."
    return text


def name(rng, thing, things):
    """A name that fits no other thing; None where there is none."""
    names = []
    if thing.morph is None and sum(t.shape == thing.shape for t in things) == 1:
        names += [f"the {thing.shape}"] * 5
    if thing.has_name and sum((t.shape, t.colour) == (thing.shape, thing.colour) for t in things) == 1:
        names += [f"the {thing.colour} {thing.shape}"] * 4
    if len(things) > 1 and thing.tint is None and sum(t.colour == thing.colour for t in things) == 1:
        names += [f"the {thing.colour} {rng.choice(('one', 'thing', 'shape'))}"]
    if len(things) == 1 and not names:
        names = ["the thing", "the shape", "it"]
    return rng.choice(names) if names else None


def continuation(rng, clip):
    """What the things of a given picture are to do: "the circle moves up"."""
    told = [thing for thing in clip.things if thing.motion != STILL or rng.random() < 0.35]
    told = told or [rng.choice(clip.things)]
    rng.shuffle(told)
    parts = [f"{name(rng, thing, clip.things)} {deed(rng, thing.motion)}" for thing in told]
    text = (" while " if rng.random() < 0.8 else " and ").join(parts)
    if rng.random() < 0.1:
        text += world.background_words(rng, clip.background)
    return finished(rng, text)


# ---------------------------------------------------------------------------------------------
# Edits

CHANGES = ("make {it} {to}", "make {it} {to}", "make {it} {to}", "turn {it} {to}", "change {it} to {to}",
           "paint {it} {to}", "colour {it} {to}", "color {it} {to}", "recolour {it} {to}",
           "change the {word} of {it} to {to}", "{it} should be {to}", "let {it} be {to}")


@dataclasses.dataclass(frozen=True)
class ClipEdit:
    """Another colour of the thing at `index` of `before`, or, where that is None, another background."""
    index: int | None
    to: str
    before: Clip
    after: Clip


def sample_edit(rng, clip, held_out=False):
    """None where the result is held out, or, for `held_out`, is not."""
    if rng.random() < 0.25:
        free = [b for b in BACKGROUNDS if b != clip.background
                and not any(t.tint is None and clashes(t.colour, b) or not stands_out(t, b) for t in clip.things)]
        if not free:
            return None
        index, to = None, rng.choice(free)
        after = dataclasses.replace(clip, background=to)
    else:
        index = rng.randrange(len(clip.things))
        thing = clip.things[index]
        others = [t for i, t in enumerate(clip.things) if i != index]
        to = rng.choice([c for c in COLOURS if c != thing.colour and not clashes(c, clip.background)
                         and all(t.tint or (t.colour, t.shape) != (c, thing.shape) for t in others)])
        things = list(clip.things)
        things[index] = dataclasses.replace(thing, colour=to, tint=None)
        after = dataclasses.replace(clip, things=tuple(things))
    return ClipEdit(index, to, clip, after) if any(is_held_out(t) for t in after.things) == held_out else None


def edit_words(rng, edit):
    """One of the many ways to ask for it."""
    if edit.index is None:
        it, to = "the background", background_word(rng, edit.to)
    else:
        it, to = name(rng, edit.before.things[edit.index], edit.before.things), edit.to
    return finished(rng, rng.choice(CHANGES).format(it=it, to=to, word=rng.choice(("colour", "color"))))


# ---------------------------------------------------------------------------------------------
# Questions

QUESTION_KINDS = {"describe": 24, "what moves": 16, "how": 20, "which": 20, "colour": 6, "shape": 4, "count": 3,
                  "background": 4, "does": 6}
WHICH = {motion: motion for motion in MOTIONS}
WHICH[RIGHT], WHICH[LEFT] = "moves to the right", "moves to the left"


def in_order(things):
    """As answers tell of them: from left to right, and from above, where they begin."""
    return sorted(things, key=lambda t: (round(t.start[0]), t.start[1]))


def definite(things):
    """the red circle and the blue star; nothing. None where one has no name."""
    if not all(t.has_name for t in things):
        return None
    return " and ".join(f"the {t.colour} {t.shape}" for t in in_order(things)) or "nothing"


def described(clip):
    if not all(t.has_name for t in clip.things):
        return None
    parts = [f"{world.with_article(f'{t.colour} {t.shape}')} {t.motion}" for t in in_order(clip.things)]
    return f"{' while '.join(parts)} on a {clip.background} background"


def draw_question(rng, clip, kind):
    """(question, what answers it: of a clip, None where nothing does), or None."""
    things = clip.things
    index = rng.choice(range(len(things)))
    thing = things[index]
    called = name(rng, thing, things)
    if called is None and kind in ("how", "does"):
        return None
    if kind == "describe":
        return rng.choice(("describe the clip", "describe the clip", "describe the video", "what happens?",
                           "what happens in the clip?", "what happens in the video?", "describe what happens",
                           "what do you see?")), described
    if kind == "what moves":
        if not any(t.motion in TRAVELS for t in things) and rng.random() < 0.7:
            return None
        return rng.choice(("what moves?", "what moves?", "what is moving?", "which thing moves?",
                           "which object moves?")), \
            lambda seen: definite([t for t in seen.things if t.motion in TRAVELS])
    if kind == "how":
        return rng.choice((f"how does {called} move?", f"how does {called} move?", f"what does {called} do?",
                           f"what happens to {called}?", f"how is {called} moving?")), \
            lambda seen: "it " + seen.things[index].motion
    if kind == "which":
        motion = thing.motion if rng.random() < 0.85 else rng.choice(MOTIONS)
        verb = motion if rng.random() < 0.6 else WHICH[motion]
        return rng.choice((f"which thing {verb}?", f"which thing {verb}?", f"what {verb}?",
                           f"which object {verb}?", f"which shape {verb}?")), \
            lambda seen: definite([t for t in seen.things if t.motion == motion])
    if kind == "colour":
        if sum(t.shape == thing.shape for t in things) > 1 or not thing.has_name:
            return None
        return f"what {rng.choice(('colour', 'color'))} is the {thing.shape}?", lambda seen: seen.things[index].colour
    if kind == "shape":
        if sum(t.motion == thing.motion for t in things) > 1 or not thing.has_name:
            return None
        return rng.choice((f"what shape {thing.motion}?", f"what shape is the thing that {thing.motion}?")), \
            lambda seen: seen.things[index].shape
    if kind == "count":
        return rng.choice(("how many things are there?", "how many objects are there?",
                           "how many shapes are in the clip?")), lambda seen: world.NUMBERS[len(seen.things)]
    if kind == "background":
        return rng.choice((f"what {rng.choice(('colour', 'color'))} is the background?",
                           "what is the background?")), lambda seen: seen.background
    motion = thing.motion if rng.random() < 0.5 else rng.choice(MOTIONS)
    base = {STILL: "stay still", DISAPPEARS: "disappear", APPEARS: "appear", SPINS: "spin", GROWS: "grow",
            SHRINKS: "shrink"}.get(motion) or motion.replace("moves", "move")
    return f"does {called} {base}?", lambda seen: "yes" if motion == seen.things[index].motion else "no"


def sample_question(rng, clip, kind):
    """(question, answer), or None."""
    drawn = draw_question(rng, clip, kind)
    return drawn and (drawn[0], drawn[1](clip))


def neighbours(clip):
    """The clip with another motion, colour or shape of one of its things, wherever that is held out."""
    for index, thing in enumerate(clip.things):
        others = [{"motion": motion} for motion in MOTIONS if motion != thing.motion]
        others += [{"colour": colour} for colour in COLOURS if thing.tint is None and colour != thing.colour]
        others += [{"shape": shape} for shape in SHAPES if thing.morph is None and shape != thing.shape]
        for change in others:
            changed = dataclasses.replace(thing, **change)
            if is_held_out(changed):
                yield dataclasses.replace(clip, things=(*clip.things[:index], changed, *clip.things[index + 1:]))


def sample_questions(rng, clip):
    """Without end: (question, answer, what neighbours of the clip would have answered). A model that is told to
    prefer the answer to these learns from it which pairs are held out, instead of looking."""
    near = list(neighbours(clip))
    while True:
        kind = rng.choices(tuple(QUESTION_KINDS), tuple(QUESTION_KINDS.values()))[0]
        drawn = draw_question(rng, clip, kind)
        answer = drawn and drawn[1](clip)
        if answer:
            question = drawn[0]
            if rng.random() < 0.3:
                question = question[0].upper() + question[1:]
            if rng.random() < 0.1:
                question = question.rstrip("?")
            yield question, answer, {drawn[1](other) for other in near} - {answer, None}


def clip_shape(rng, buckets_only=False):
    listed = [entry for entry in SHAPES_OF_CLIPS if not buckets_only or entry[0] in BUCKETS]
    size, frames, _ = rng.choices(listed, [weight for _, _, weight in listed])[0]
    return size, frames
