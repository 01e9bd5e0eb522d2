"""What may be done to a scene, and how people ask for it.

An `Edit` is a change, chosen once; `words` says it in one of its many ways.
"""
import dataclasses

import world
from world import BACKGROUNDS, CELL, COLOURS, COMPOSED, SHAPES, SIDES, SIZES, SIZE_WORDS

KINDS = {"recolour": 20, "remove": 17, "add": 21, "move": 20, "resize": 8, "background": 7, "reshape": 7}
# As often as training sees them: what keeps an outline or a place to the pixel is learned last.
LEARNED_KINDS = {**KINDS, "recolour": 28, "reshape": 18}


@dataclasses.dataclass(frozen=True)
class Edit:
    kind: str  # one of KINDS
    before: world.Scene
    after: world.Scene
    index: int | None = None  # of the thing that changes, in `before`; of the added one, in `after`
    side: str | None = None  # where to, one of SIDES, if that is said
    said: world.Group | None = None  # what is said of an added thing


def is_named(thing, things):
    """Is there a short name for it that fits no other? By its shape, its colour, or both."""
    return any(sum(same(thing, t) for t in things) == 1 for same in (
        lambda a, b: (a.shape, a.colour) == (b.shape, b.colour), lambda a, b: a.colour == b.colour))


def name(rng, thing, things):
    """One of the names of a thing that `is_named`: "the circle", where that says which, or with its colour."""
    same_shape = [t for t in things if t.shape == thing.shape]
    same_colour = [t for t in things if t.colour == thing.colour]
    both = [t for t in same_shape if t.colour == thing.colour]
    names = []
    if len(same_shape) == 1:
        names += [f"the {thing.shape}"] * 5
    if len(both) == 1:
        names += [f"the {thing.colour} {thing.shape}"] * 3
        if rng.random() < 0.3:
            names += [f"the {thing.size} {thing.colour} {thing.shape}"]
    if len(same_colour) == 1 and len(things) > 1:
        names += [f"the {thing.colour} {rng.choice(('one', 'shape', 'object'))}"]
    return rng.choice(names)


# ---------------------------------------------------------------------------------------------
# Changes


def recolour(rng, scene, index):
    thing = scene.things[index]
    taken = {t.colour for t in scene.things} if world.contained(scene) else {thing.colour}
    colours = [c for c in COLOURS if c not in taken and not world.clashes(c, scene.background)]
    after = world.swap(scene, index, dataclasses.replace(thing, colour=rng.choice(colours)))
    return Edit("recolour", scene, after, index)


def remove(rng, scene, index):
    if len(scene.things) == 1 and rng.random() < 0.7:
        return None
    rest = tuple(t for i, t in enumerate(scene.things) if i != index)
    return Edit("remove", scene, dataclasses.replace(scene, things=rest), index)


def reshape(rng, scene, index):
    thing = scene.things[index]
    shape = rng.choice([s for s in SHAPES if s != thing.shape])
    return Edit("reshape", scene, world.swap(scene, index, dataclasses.replace(thing, shape=shape)), index)


def resize(_, scene, index):
    if world.contained(scene):
        return None
    thing = scene.things[index]
    size = "small" if thing.size == "large" else "large"
    after = world.swap(scene, index, dataclasses.replace(thing, size=size, r=COMPOSED[size][0]))
    return Edit("resize", scene, after, index) if world.keeps_clear(after, index) else None


def move(rng, scene, index):
    """To the cell at a side, in the row or column where it is, as composed things are. The painter knows
    such things by heart; a loose thing's own offsets and proportions it would have to carry across the
    picture. None: no room there, or it is there."""
    if world.contained(scene):
        return None
    side = rng.choice(SIDES)
    thing = scene.things[index]
    r, half = COMPOSED[thing.size]
    columns, rows = (world.inner_cells(length // CELL, half) for length in (scene.width, scene.height))

    def nearest(cells, centre):
        return min(cells, key=lambda cell: abs(world.cell_centre(cell) - centre))

    column, row = nearest(columns, thing.x), nearest(rows, thing.y)
    if side in ("left", "right"):
        column = columns[0] if side == "left" else columns[-1]
    else:
        row = rows[0] if side == "top" else rows[-1]
    x, y = world.cell_centre(column), world.cell_centre(row)
    way = x - thing.x if side in ("left", "right") else y - thing.y
    if (way if side in ("right", "bottom") else -way) < 1.5 * CELL:
        return None
    after = world.swap(scene, index, dataclasses.replace(thing, x=x, y=y, r=r, variant=0.0))
    return Edit("move", scene, after, index, side) if world.keeps_clear(after, index) else None


def add(rng, scene):
    """In the first free place at its side; small, unless its size is said: a painter that has to
    choose paints both."""
    if len(scene.things) >= world.MAX_THINGS or world.contained(scene):
        return None
    colours = [c for c in COLOURS if not world.clashes(c, scene.background)]
    said = world.Group(1, rng.choice(SIZES) if rng.random() < 0.5 else None, rng.choice(colours),
                       rng.choice(SHAPES))
    side = rng.choice(SIDES) if rng.random() < 0.75 else None
    size = said.size or "small"
    r, half = COMPOSED[size]
    for s in (side,) if side else ("right", "left", "top", "bottom"):
        for x, y in world.places_at_side(half, s, scene.width // CELL, scene.height // CELL):
            new = world.Thing(said.shape, said.colour, size, world.cell_centre(x), world.cell_centre(y), r)
            after = dataclasses.replace(scene, things=scene.things + (new,))
            if world.keeps_clear(after, len(scene.things)):
                return Edit("add", scene, after, len(scene.things), side, said)
    return None


def change_background(rng, scene):
    choices = [b for b in BACKGROUNDS
               if b != scene.background and not any(world.clashes(t.colour, b) for t in scene.things)]
    return Edit("background", scene, dataclasses.replace(scene, background=rng.choice(choices)))


OF_SCENES = {"add": add, "background": change_background}
OF_THINGS = {"recolour": recolour, "remove": remove, "reshape": reshape, "resize": resize, "move": move}


def sample(rng, scene, kind):
    """An edit of that kind, or None where the scene does not allow one."""
    if kind in OF_SCENES:
        return OF_SCENES[kind](rng, scene)
    if not scene.things:
        return None
    index = rng.randrange(len(scene.things))
    return OF_THINGS[kind](rng, scene, index) if is_named(scene.things[index], scene.things) else None


def sample_any(rng, scene, held_out=False, kinds=None):
    """An edit of any kind; None where a few tries gave none whose result may be trained on. `kinds`: how often
    each, as KINDS."""
    kinds = kinds or KINDS
    for _ in range(12):
        kind = rng.choices(tuple(kinds), tuple(kinds.values()))[0]
        edit = sample(rng, scene, kind)
        if edit is not None and (held_out or not world.is_held_out(edit.after)):
            return edit
    return None


# ---------------------------------------------------------------------------------------------
# Words


def words(rng, edit):
    """One of the many ways to ask for it."""
    return world.polite(rng, SAY[edit.kind](rng, edit))


def name_in(rng, edit):
    return name(rng, edit.before.things[edit.index], edit.before.things)


def say_background(rng, edit):
    word = world.background_word(rng, edit.after.background)
    return rng.choice((f"make the background {word}", f"change the background to {word}",
                       f"turn the background {word}", f"use a {word} background", f"put it on a {word} background"))


def say_add(rng, edit):
    where = {
        None: ("",),
        "left": (" on the left", " on the left", " to the left", " on the left side"),
        "right": (" on the right", " on the right", " to the right", " on the right side"),
        "top": (" at the top", " on top", " at the top"),
        "bottom": (" at the bottom", " at the bottom", " below"),
    }[edit.side]
    what = world.group_words(edit.said, rng.choice(SIZE_WORDS[edit.said.size]) if edit.said.size else None)
    return f"{rng.choice(('add', 'add', 'add', 'put', 'draw', 'place'))} {what}{rng.choice(where)}"


def say_recolour(rng, edit):
    it, colour = name_in(rng, edit), edit.after.things[edit.index].colour
    return rng.choice((f"make {it} {colour}", f"make {it} {colour}", f"make {it} {colour}",
                       f"turn {it} {colour}", f"change {it} to {colour}", f"paint {it} {colour}",
                       f"recolour {it} {colour}",
                       f"change the {rng.choice(('colour', 'color'))} of {it} to {colour}"))


def say_remove(rng, edit):
    it = name_in(rng, edit)
    return rng.choice((f"remove {it}", f"remove {it}", f"remove {it}", f"delete {it}", f"take away {it}",
                       f"erase {it}", f"get rid of {it}"))


def say_reshape(rng, edit):
    it, shape = name_in(rng, edit), edit.after.things[edit.index].shape
    return rng.choice((f"replace {it} with a {shape}", f"replace {it} by a {shape}", f"turn {it} into a {shape}",
                       f"change {it} into a {shape}", f"change {it} to a {shape}", f"make {it} a {shape}"))


def say_resize(rng, edit):
    it, size = name_in(rng, edit), edit.after.things[edit.index].size
    more = {"small": "smaller", "large": rng.choice(("larger", "bigger"))}[size]
    return rng.choice((f"make {it} {rng.choice(SIZE_WORDS[size])}", f"make {it} {more}", f"make {it} {more}"))


def say_move(rng, edit):
    it, verb = name_in(rng, edit), rng.choice(("move", "move", "move", "shift", "put"))
    if verb == "put":
        where = {"left": ("on the left",), "right": ("on the right",), "top": ("at the top",),
                 "bottom": ("at the bottom",)}[edit.side]
    else:
        where = {"left": ("to the left", "to the left", "to the left side"),
                 "right": ("to the right", "to the right", "to the right side"),
                 "top": ("to the top", "up", "upwards"),
                 "bottom": ("to the bottom", "down", "downwards")}[edit.side]
    return f"{verb} {it} {rng.choice(where)}"


SAY = {"background": say_background, "add": say_add, "recolour": say_recolour, "remove": say_remove,
       "reshape": say_reshape, "resize": say_resize, "move": say_move}
