"""The demo's world: scenes of coloured shapes, and the language that speaks of them.

A `Spec` is what a caption says (groups of things, a relation, a background; None where it leaves
something open); a `Scene` is one picture of it, every thing with its place. Everything here is
plain Python over a `random.Random`, so that the same seed gives the same scenes everywhere.
"""
import dataclasses
import random
import zlib

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross", "heart", "diamond")
COLOURS = {
    "red": (220, 40, 40), "green": (40, 160, 70), "blue": (50, 90, 220), "yellow": (240, 200, 40),
    "purple": (140, 60, 180), "orange": (240, 130, 30), "cyan": (40, 190, 200),
    "pink": (240, 130, 180), "black": (20, 20, 20), "white": (245, 245, 245),
}
BACKGROUNDS = {
    "white": (255, 255, 255), "gray": (128, 128, 128), "black": (0, 0, 0), "sand": (222, 203, 164),
    "sky": (135, 206, 235),
}
SIZES = ("small", "large")
RELATIONS = ("left of", "right of", "above", "below", "inside")
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
SIDES = ("left", "right", "top", "bottom")

# Width, height in pixels and how often training sees them; every object scales with the short side.
PICTURE_SIZES = (((192, 192), 0.6), ((256, 192), 0.2), ((192, 256), 0.2))
REFERENCE_SIDE = 192

MARGIN, GAP = 5.0, 8.0  # pixels at the reference side: to the border, between two things
RADII = {"small": (16.5, 22.0), "large": (33.0, 40.0)}
CONTAINER_RADII = (50.0, 58.0)  # of a thing that has another inside
CONTENT_RADII = (15.5, 18.5)
MAX_THINGS = 3

# How scenes lay out what their spec leaves open. Loose ones have any offsets, radii and proportions.
# In composed ones every centre is that of a cell, as large as a row of latents, and radii are these:
# the painter has few pieces to learn. Arranged ones have one layout for each spec and sizes of its
# things: where it is drawn from many, a painter of little capacity paints a mixture of two. It lies in
# the square in the middle, whatever the picture's size, which a plan is written without.
LAYOUTS = ("loose", "composed", "arranged")
CELL = 16
COMPOSED = {"small": (20.0, 1), "large": (34.0, 2)}  # radius, and cells from the centre's to the edge
COMPOSED_CONTAINER, COMPOSED_CONTENT = (52.0, 3), 18.0


@dataclasses.dataclass(frozen=True)
class Group:
    """`count` things that look the same."""
    count: int
    size: str | None
    colour: str
    shape: str


@dataclasses.dataclass(frozen=True)
class Spec:
    groups: tuple[Group, ...]
    relation: str | None = None  # of the first group to the second
    background: str | None = None
    place: str | None = None  # of a single thing: one of SIDES, or "centre"


@dataclasses.dataclass(frozen=True)
class Thing:
    shape: str
    colour: str
    size: str
    x: float  # centre and radius, in pixels
    y: float
    r: float
    variant: float = 0.0  # -1 .. 1: proportions within the shape


@dataclasses.dataclass(frozen=True)
class Scene:
    width: int
    height: int
    background: str
    things: tuple[Thing, ...]  # in the order they are drawn


# ---------------------------------------------------------------------------------------------
# What training never sees


def is_held_out_pair(shape, colour):
    """A fifth of all (shape, colour) pairs never stands in a training scene of several things."""
    return (SHAPES.index(shape) * 2 + list(COLOURS).index(colour)) % 9 in (0, 4)


def is_held_out_single(shape, colour, size, background):
    """A tenth of the scenes of one thing is never trained on."""
    return zlib.crc32(f"{shape} {colour} {size} {background}".encode()) % 10 == 0


def is_held_out(scene):
    things = scene.things
    if len(things) == 1:
        thing = things[0]
        return is_held_out_single(thing.shape, thing.colour, thing.size, scene.background)
    return any(is_held_out_pair(thing.shape, thing.colour) for thing in things)


# ---------------------------------------------------------------------------------------------
# Specs and the scenes that fulfil them


def picture_size(rng):
    sizes, weights = zip(*PICTURE_SIZES)
    return rng.choices(sizes, weights)[0]


def clashes(colour, background):
    return colour == background  # white on white, black on black


def sample_spec(rng):
    """What a caption of the training set says."""
    kind = rng.choices(("single", "pair", "relation", "inside", "triple", "count", "mixed"),
                       (22, 8, 30, 9, 12, 11, 8))[0]
    background = rng.choice(tuple(BACKGROUNDS)) if rng.random() < 0.7 else None

    def group(count=1):
        size = rng.choice(SIZES) if rng.random() < 0.55 else None
        colours = [c for c in COLOURS if not clashes(c, background)]
        return Group(count, size, rng.choice(colours), rng.choice(SHAPES))

    if kind == "single":
        place = rng.choice(SIDES + ("centre",)) if rng.random() < 0.2 else None
        return Spec((group(),), None, background, place)
    if kind == "pair":
        return Spec((group(), group()), None, background)
    if kind == "relation":
        return Spec((group(), group()), rng.choice(RELATIONS[:4]), background)
    if kind == "inside":
        inner, outer = group(), group()
        while inner.colour == outer.colour:
            inner = group()
        sized = rng.random() < 0.5
        return Spec((dataclasses.replace(inner, size="small" if sized and rng.random() < 0.8 else None),
                     dataclasses.replace(outer, size="large" if sized else None)),
                    "inside", background)
    if kind == "triple":
        relation = rng.choice(RELATIONS[:4]) if rng.random() < 0.4 else None
        return Spec((group(), group(), group()), relation, background)
    if kind == "count":
        return Spec((group(rng.choice((2, 2, 3, 3, 3))),), None, background)
    many, one = group(2), group()
    groups = (many, one) if rng.random() < 0.6 else (one, many)
    return Spec(groups, rng.choice(RELATIONS[:4]) if rng.random() < 0.5 else None, background)


def related(a, b, relation, scale=1.0, slope=1.8):
    """Does thing a stand in this relation to thing b, clearly? That is, at least `slope` times as far along
    it as across."""
    dx, dy = b.x - a.x, b.y - a.y
    if relation in ("left of", "right of"):
        along, across = (dx if relation == "left of" else -dx), abs(dy)
    elif relation in ("above", "below"):
        along, across = (dy if relation == "above" else -dy), abs(dx)
    else:
        return (dx * dx + dy * dy) ** 0.5 < 6 * scale and a.r < 0.5 * b.r
    return along > slope * across and along > 0.85 * (a.r + b.r)


def apart(thing, others, scale):
    return all((thing.x - o.x) ** 2 + (thing.y - o.y) ** 2 >
               (1.04 * (thing.r + o.r) + GAP * scale) ** 2 for o in others)


def fits(thing, width, height, scale):
    edge = 1.06 * thing.r + MARGIN * scale
    return edge <= thing.x <= width - edge and edge <= thing.y <= height - edge


def sample_radius(rng, size, scale):
    return rng.uniform(*RADII[size]) * scale


def place_at_side(rng, side, r, width, height, scale):
    """A centre near that side, or in the middle."""
    edge = 1.06 * r + MARGIN * scale

    def between(low, high):
        return rng.uniform(min(low, high), max(low, high))

    x = between(max(edge, 0.38 * width), min(width - edge, 0.62 * width))
    y = between(max(edge, 0.38 * height), min(height - edge, 0.62 * height))
    if side == "left":
        x = between(edge, max(edge, 0.27 * width))
    elif side == "right":
        x = between(min(width - edge, 0.73 * width), width - edge)
    elif side == "top":
        y = between(edge, max(edge, 0.27 * height))
    elif side == "bottom":
        y = between(min(height - edge, 0.73 * height), height - edge)
    else:
        x = width / 2 + rng.uniform(-6, 6) * scale
        y = height / 2 + rng.uniform(-6, 6) * scale
    return x, y


def open_background(rng, spec):
    """The background, drawn where the spec leaves it open; None where something would not be seen."""
    colours = {g.colour for g in spec.groups}
    if spec.background:
        return None if any(clashes(c, spec.background) for c in colours) else spec.background
    open_ones = [b for b in BACKGROUNDS if b not in colours]
    return "white" if "white" in open_ones and rng.random() < 0.5 else rng.choice(open_ones)


def realise(rng, spec, width, height):
    """One loose scene of that spec (any offsets, radii and proportions), or None where none was found in a few tries."""
    scale = min(width, height) / REFERENCE_SIDE
    background = open_background(rng, spec)
    if background is None:
        return None

    def size_of(group):
        return group.size or rng.choice(SIZES)

    def thing(group, size, x, y, r):
        return Thing(group.shape, group.colour, size, x, y, r, rng.uniform(-1, 1))

    if spec.relation == "inside":
        inner, outer = spec.groups
        r = rng.uniform(*CONTAINER_RADII) * scale
        edge = 1.06 * r + MARGIN * scale
        x, y = rng.uniform(edge, width - edge), rng.uniform(edge, height - edge)
        shift = [rng.uniform(-2, 2) * scale for _ in range(2)]
        return Scene(width, height, background,
                     (thing(outer, "large", x, y, r),
                      thing(inner, "small", x + shift[0], y + shift[1],
                            rng.uniform(*CONTENT_RADII) * scale)))

    for _ in range(6):  # sizes left open are drawn anew each time
        sizes = [size_of(g) for g in spec.groups]
        for _ in range(40):
            placed = []
            for index, (group, size) in enumerate(zip(spec.groups, sizes)):
                r = sample_radius(rng, size, scale)
                for _ in range(group.count):
                    edge = 1.06 * r + MARGIN * scale
                    if len(spec.groups) == 1 and group.count == 1:
                        side = spec.place or ("centre" if rng.random() < 0.55 else None)
                    else:
                        side = None
                    if side:
                        x, y = place_at_side(rng, side, r, width, height, scale)
                    else:
                        x, y = rng.uniform(edge, width - edge), rng.uniform(edge, height - edge)
                    placed.append((index, thing(group, size, x, y, r)))
            things = [t for _, t in placed]
            if not all(fits(t, width, height, scale) for t in things):
                continue
            if not all(apart(t, things[:i], scale) for i, t in enumerate(things)):
                continue
            if spec.relation and not all(related(a, b, spec.relation)
                                         for i, a in placed if i == 0
                                         for j, b in placed if j == 1):
                continue
            return Scene(width, height, background, tuple(things))
    return None


def cell_centre(cell):
    return CELL * cell + CELL / 2


def middle_cells(count, spread):
    """The cells of a row of `count` that are at most so far from its middle."""
    return [c for c in range(count) if abs(c - (count - 1) / 2) <= spread]


def inner_cells(count, half):
    """The cells where a thing that reaches so far keeps one cell free to the border."""
    return range(half + 1, count - 1 - half)


def middle_cell(count):
    return (count - 1) // 2


def compose_single(rng, half, place, columns, rows):
    """The cell (column, row) of a thing that stands alone."""
    if place in SIDES:
        across = rows if place in ("left", "right") else columns
        cells = inner_cells(columns if place in ("left", "right") else rows, half)
        near = [c for c in cells if cell_centre(c) < 0.3 * CELL * (cells[-1] + half + 2)] or cells[:1]
        along = rng.choice(near)
        if place in ("right", "bottom"):
            along = cells[0] + cells[-1] - along
        beside = rng.choice(middle_cells(across, 1.5))
        return (along, beside) if place in ("left", "right") else (beside, along)
    return rng.choice(middle_cells(columns, 0.5)), rng.choice(middle_cells(rows, 0.5))


def places_at_side(half, side, columns, rows):
    """The cells at that side, the middle one first, or the middle one alone."""
    def first_and_last(count):
        cells = inner_cells(count, half)
        return cells[0], cells[-1]

    (left, right), (top, bottom) = first_and_last(columns), first_and_last(rows)
    if side in ("left", "right"):
        column = left if side == "left" else right
        return [(column, row) for row in (middle_cell(rows), top, bottom)]
    if side in ("top", "bottom"):
        row = top if side == "top" else bottom
        return [(column, row) for column in (middle_cell(columns), left, right)]
    return [(middle_cell(columns), middle_cell(rows))]


def pairs_beside(count, halves):
    """The cells of two things in a row of `count`, around its middle."""
    least = sum(halves) + 1
    return [(a, b) for a in inner_cells(count, halves[0]) for b in inner_cells(count, halves[1])
            if least <= b - a <= least + 2 and abs(a + b - (count - 1)) <= 2]


def lay_two(relation, pair, across):
    """The cells of two things whose places along the relation are `pair`, across it `across`."""
    cells = list(zip(pair, across))
    if relation in ("above", "below"):
        cells = [cell[::-1] for cell in cells]
    return cells[::-1] if relation in ("right of", "below") else cells


def compose_two(rng, halves, relation, columns, rows):
    """The cells of two things beside or above each other, around the middle; None: no room."""
    count, across = (columns, rows) if relation in ("left of", "right of") else (rows, columns)
    pairs = pairs_beside(count, halves[::-1] if relation in ("right of", "below") else halves)
    if not pairs:
        return None
    pair = rng.choice(pairs)
    beside = rng.choice(middle_cells(across, 1))
    return lay_two(relation, pair, (beside, beside + rng.choice((0, 0, 0, -1, 1))))


def arrange_two(halves, relation, columns, rows):
    """As `compose_two`, always the same."""
    count, across = (columns, rows) if relation in ("left of", "right of") else (rows, columns)
    halves = halves[::-1] if relation in ("right of", "below") else halves
    pairs = pairs_beside(count, halves)
    if not pairs:
        return None
    pair = min(pairs, key=lambda p: (abs(p[1] - p[0] - sum(halves) - 2), abs(sum(p) - count + 1), p))
    return lay_two(relation, pair, (middle_cell(across),) * 2)


def arrange_three(halves, counts, relation, columns, rows):
    """The cells of three things: the groups that are related on two sides, a third of them below or
    on the right; without a relation, in the corners of a triangle."""
    lengthwise = relation not in ("above", "below")
    count, across = (columns, rows) if lengthwise else (rows, columns)
    near, far = count // 4, count - 1 - count // 4
    if relation in ("right of", "below"):
        near, far = far, near
    top, bottom = across // 4, across - 1 - across // 4
    if relation and counts[:2] in ((2, 1), (1, 2)):
        two = halves[0] if counts[0] == 2 else halves[2]
        middle, beside = middle_cell(across), two + 1
        pair, one = [(near if counts[0] == 2 else far, middle + row) for row in (-beside, beside)], \
            (far if counts[0] == 2 else near, middle)
        cells = [*pair, one] if counts[0] == 2 else [one, *pair]
    else:
        cells = [(near, top), (far, top), (middle_cell(count), bottom)]
    return cells if lengthwise else [cell[::-1] for cell in cells]


def compose_many(rng, halves, columns, rows):
    """Cells of things that keep clear of each other, anywhere; None where a try found none."""
    cells = []
    for half in halves:
        cell = rng.choice(inner_cells(columns, half)), rng.choice(inner_cells(rows, half))
        if any(max(abs(cell[0] - c[0]), abs(cell[1] - c[1])) <= half + h
               for c, h in zip(cells, halves)):
            return None
        cells.append(cell)
    return cells


def cells_of(rng, spec, halves, columns, rows, arranged):
    """The cells of a composed or arranged scene's things; None where there is no room, or a try
    found none."""
    if len(halves) == 1:
        return places_at_side(halves[0], spec.place, columns, rows)[:1] if arranged else \
            [compose_single(rng, halves[0], spec.place, columns, rows)]
    if len(halves) == 2:
        if arranged:
            return arrange_two(halves, spec.relation or "left of", columns, rows)
        return compose_two(rng, halves, spec.relation or rng.choice(RELATIONS[:4]), columns, rows)
    if arranged:
        counts = tuple(g.count for g in spec.groups)
        return arrange_three(halves, counts, spec.relation, columns, rows)
    return compose_many(rng, halves, columns, rows)


def compose(rng, spec, width, height, arranged):
    """One composed or arranged scene of that spec, or None where none was found in a few tries."""
    background = open_background(rng, spec)
    if background is None:
        return None
    columns, rows = width // CELL, height // CELL
    left, top = 0, 0
    if arranged:
        side = min(columns, rows)
        left, top = (columns - side) // 2, (rows - side) // 2
        columns, rows = side, side

    def scene(placed):
        return Scene(width, height, background, tuple(
            Thing(group.shape, group.colour, size, cell_centre(left + cell[0]), cell_centre(top + cell[1]), r)
            for group, size, cell, r in placed))

    if spec.relation == "inside":
        inner, outer = spec.groups
        cell = (middle_cell(columns), middle_cell(rows)) if arranged else \
            (rng.choice(middle_cells(columns, 1.5)), rng.choice(middle_cells(rows, 1.5)))
        return scene([(outer, "large", cell, COMPOSED_CONTAINER[0]),
                      (inner, "small", cell, COMPOSED_CONTENT)])
    groups = [g for g in spec.groups for _ in range(g.count)]
    for _ in range(60):
        sized = {id(g): g.size or rng.choice(SIZES) for g in spec.groups}
        sizes = [sized[id(g)] for g in groups]
        cells = cells_of(rng, spec, [COMPOSED[size][1] for size in sizes], columns, rows, arranged)
        if cells is None:
            continue
        made = scene([(g, size, cell, COMPOSED[size][0])
                      for g, size, cell in zip(groups, sizes, cells)])
        if len(groups) == 3 and spec.relation:
            first = spec.groups[0].count
            second = first + spec.groups[1].count
            slope = 1.65  # of a pair of large things on whole cells, and one beside both
            if not all(related(a, b, spec.relation, slope=slope) for a in made.things[:first]
                       for b in made.things[first:second]):
                continue
        return made
    return None


def sample_scene(rng, width, height, held_out=False, layout="arranged"):
    """(spec, scene) of the training distribution, or of what it leaves out."""
    while True:
        spec = sample_spec(rng)
        scene = realise(rng, spec, width, height) if layout == "loose" else \
            compose(rng, spec, width, height, layout == "arranged")
        if scene is not None and is_held_out(scene) == held_out:
            return spec, scene


def swap(scene, index, thing):
    things = list(scene.things)
    things[index] = thing
    return dataclasses.replace(scene, things=tuple(things))


def contained(scene):
    """(outer, inner) of a scene with one thing inside another."""
    if len(scene.things) == 2:
        outer, inner = scene.things
        if related(inner, outer, "inside", min(scene.width, scene.height) / REFERENCE_SIDE):
            return outer, inner
    return None


def keeps_clear(scene, index):
    """Is the thing at `index` free of the others and within the borders?"""
    scale = min(scene.width, scene.height) / REFERENCE_SIDE
    thing = scene.things[index]
    others = [t for i, t in enumerate(scene.things) if i != index]
    return fits(thing, scene.width, scene.height, scale) and apart(thing, others, scale)


def sort_key(thing):
    return SHAPES.index(thing.shape), list(COLOURS).index(thing.colour), thing.size != "large"


def spec_of(scene):
    """All that can be said of a scene, in the one order that descriptions have."""
    groups = {}
    for thing in sorted(scene.things, key=lambda t: sort_key(t) + (t.x,)):
        groups.setdefault((thing.size, thing.colour, thing.shape), []).append(thing)
    listed = list(groups.values())
    relation = None
    if len(listed) == 2:
        first, second = listed
        scale = min(scene.width, scene.height) / REFERENCE_SIDE
        for candidate in ("left of", "above", "inside"):
            for a, b in ((first, second), (second, first)):
                if all(related(x, y, candidate, scale) for x in a for y in b):
                    relation, listed = candidate, [a, b]
    return Spec(tuple(Group(len(g), g[0].size, g[0].colour, g[0].shape) for g in listed), relation,
                scene.background)


# ---------------------------------------------------------------------------------------------
# Captions

CAPITALS = 0.05  # of what is said: in capitals throughout
NUMBERS = {1: "one", 2: "two", 3: "three"}
SIZE_WORDS = {"small": ("small", "small", "small", "little"), "large": ("large", "large", "large", "big")}
RELATION_WORDS = {
    "left of": ("left of", "left of", "to the left of", "on the left of"),
    "right of": ("right of", "right of", "to the right of", "on the right of"),
    "above": ("above", "above", "above", "over"),
    "below": ("below", "below", "under", "beneath"),
    "inside": ("inside", "inside", "in", "within", "inside of"),
}
INVERSE_WORDS = {  # "B with A ..."
    "left of": ("to its left", "on its left", "on the left"),
    "right of": ("to its right", "on its right", "on the right"),
    "above": ("above it", "above"),
    "below": ("below it", "below", "under it"),
    "inside": ("inside it", "inside", "in it"),
}


def plural(shape):
    return "crosses" if shape == "cross" else shape + "s"


def with_article(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def group_words(group, size=None, number=None, article=True):
    """a large red circle; three small blue stars."""
    words = " ".join(w for w in (size or group.size, group.colour) if w)
    if group.count == 1:
        words += " " + group.shape
        return with_article(words) if article else words
    return f"{number or NUMBERS[group.count]} {words} {plural(group.shape)}"


def background_word(rng, background):
    return rng.choice(("gray", "grey")) if background == "gray" else background


def background_words(rng, background):
    word = background_word(rng, background)
    return rng.choice((
        f" on a {word} background", f" on a {word} background", f" on a {word} background",
        f" on a {word} background", f" on {word}", f" against a {word} background",
        f" with a {word} background", f", {word} background"))


def caption(rng, spec):
    """One of the many ways to say it."""
    def words(group):
        size = rng.choice(SIZE_WORDS[group.size]) if group.size else None
        number = None
        if group.count > 1:
            number = rng.choices((NUMBERS[group.count], str(group.count)), (85, 15))[0]
            if group.count == 2 and rng.random() < 0.06:
                number = "a pair of"
        elif rng.random() < 0.03:
            return "one " + group_words(group, size, article=False)
        elif rng.random() < 0.02:
            return "the " + group_words(group, size, article=False)
        return group_words(group, size, number)

    said = [words(g) for g in spec.groups]
    if spec.relation and rng.random() < 0.12:
        text = f"{said[1]} with {said[0]} {rng.choice(INVERSE_WORDS[spec.relation])}"
        said = [text] + said[2:]
    elif spec.relation:
        copula = " is" if rng.random() < 0.04 and spec.groups[0].count == 1 else ""
        said = [f"{said[0]}{copula} {rng.choice(RELATION_WORDS[spec.relation])} {said[1]}"] + said[2:]
    elif spec.place:
        place = {"left": "on the left", "right": "on the right", "top": "at the top",
                 "bottom": "at the bottom", "centre": rng.choice(("in the centre", "in the middle",
                                                                  "in the center"))}[spec.place]
        said = [f"{said[0]} {place}"]
    if len(said) == 1:
        text = said[0]
    elif len(said) == 2:
        joint = " and " if not spec.relation else rng.choice((" and ", ", and ", " with ", ", "))
        text = joint.join(said) if rng.random() < 0.92 else ", ".join(said)
        if not spec.relation and rng.random() < 0.06:
            text = " next to ".join(said)
    else:
        text = f"{said[0]}, {said[1]}{rng.choice((' and ', ', and '))}{said[2]}"
        if rng.random() < 0.12:
            text = " and ".join(said)
    if spec.background:
        if rng.random() < 0.06:
            text = f"on a {background_word(rng, spec.background)} background, {text}"
        else:
            text += background_words(rng, spec.background)
    return dress(rng, text)


def dress(rng, text):
    """As different people type the same thing."""
    if rng.random() < 0.14:
        text = rng.choice(("a picture of ", "an image of ", "draw ", "paint ", "a painting of ",
                           "please draw ", "show me ", "there is ", "generate ")) + text
    if rng.random() < 0.2:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.2:
        text += "."
    if rng.random() < CAPITALS:
        text = text.upper()
    return text


def mistaken(rng, spec):
    """The spec with another colour or shape for one of its groups, so that it says nothing that training
    leaves out; as it is where a few tries find none."""
    for _ in range(20):
        index = rng.randrange(len(spec.groups))
        old = spec.groups[index]
        new = dataclasses.replace(old, colour=rng.choice(tuple(COLOURS))) if rng.random() < 0.5 else \
            dataclasses.replace(old, shape=rng.choice(SHAPES))
        groups = spec.groups[:index] + (new,) + spec.groups[index + 1:]
        if new == old or clashes(new.colour, spec.background) or \
                len({(g.colour, g.shape) for g in groups}) < len(groups):
            continue
        if sum(g.count for g in groups) > 1:
            held_out = is_held_out_pair(new.shape, new.colour)
        else:
            held_out = is_held_out_single(new.shape, new.colour, new.size, spec.background)
        if not held_out:
            return dataclasses.replace(spec, groups=groups)
    return spec


def description(scene):
    """The answer to "describe the picture"."""
    spec = spec_of(scene)
    said = [group_words(g) for g in spec.groups]
    if not said:
        return f"a {scene.background} background"
    if spec.relation:
        text = f"{said[0]} {spec.relation} {said[1]}"
    elif len(said) == 3:
        text = f"{said[0]}, {said[1]} and {said[2]}"
    else:
        text = " and ".join(said)
    return f"{text} on a {scene.background} background"


# ---------------------------------------------------------------------------------------------
# Plans

def plan(scene, things=None):
    """What think mode writes before it paints: every thing and the column and row of its cell, counted from
    the corner of the square in the middle, so that arranged things have the same ones at every size; loose
    things outside that square may have cells below 1."""
    side = min(scene.width, scene.height)

    def cell(centre, length):
        return int((centre - (length - side) / 2) // CELL) + 1

    parts = [f"{scene.background} background"]
    for thing in things or sorted(scene.things, key=sort_key):
        column, row = cell(thing.x, scene.width), cell(thing.y, scene.height)
        parts.append(f"{thing.size} {thing.colour} {thing.shape} at {column} {row}")
    return "<think> " + "; ".join(parts) + " </think>"


# ---------------------------------------------------------------------------------------------
# How people speak


def polite(rng, text):
    if rng.random() < 0.05:
        text = rng.choice(("please ", "now ", "can you ")) + text
    if rng.random() < 0.2:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.2:
        text += "."
    if rng.random() < CAPITALS:
        text = text.upper()
    return text


# ---------------------------------------------------------------------------------------------
# Questions

QUESTION_KINDS = {"colour": 22, "count": 14, "describe": 30, "shape": 8, "exists": 8,
                  "background": 6, "how many of": 6, "size": 6, "relation": 6}


def sample_question(rng, scene, kind):
    """(question, answer), or None where the scene does not allow one of that kind."""
    things = scene.things
    word = rng.choice(("colour", "color"))
    if kind == "describe":
        return rng.choice(("describe the picture", "describe the picture", "describe the image",
                           "describe this picture", "what is in the picture?",
                           "what do you see?", "what does the picture show?")), description(scene)
    if kind == "count":
        noun = rng.choice(("objects", "objects", "shapes", "things"))
        return rng.choice((f"how many {noun} are there?", f"how many {noun} are there?",
                           f"how many {noun} are in the picture?",
                           f"how many {noun} do you see?", f"count the {noun}")), \
            NUMBERS.get(len(things), "none")
    if kind == "background":
        return rng.choice((f"what {word} is the background?", "what is the background?",
                           f"what is the {word} of the background?")), scene.background
    if kind == "exists":
        if things and rng.random() < 0.5:
            thing = rng.choice(things)
            shape, colour = thing.shape, thing.colour
        else:
            shape, colour = rng.choice(SHAPES), rng.choice(tuple(COLOURS))
            if things and rng.random() < 0.5:  # half right
                shape = rng.choice(things).shape
        with_colour = rng.random() < 0.6
        found = any(t.shape == shape and (t.colour == colour or not with_colour) for t in things)
        noun = f"{colour} {shape}" if with_colour else shape
        return rng.choice((f"is there {with_article(noun)}?",
                           f"is there {with_article(noun)} in the picture?",
                           f"do you see {with_article(noun)}?")), "yes" if found else "no"
    if not things:
        return None
    thing = rng.choice(things)
    shapes = [t for t in things if t.shape == thing.shape]
    if kind == "colour":
        if len({t.colour for t in shapes}) != 1:
            return None
        if len(shapes) > 1:
            return rng.choice((f"what {word} are the {plural(thing.shape)}?",
                               f"what is the {word} of the {plural(thing.shape)}?")), thing.colour
        return rng.choice((f"what {word} is the {thing.shape}?", f"what {word} is the {thing.shape}?",
                           f"what {word} is the {thing.shape}?",
                           f"what is the {word} of the {thing.shape}?",
                           f"which {word} is the {thing.shape}?",
                           f"which {word} does the {thing.shape} have?")), thing.colour
    if kind == "shape":
        if sum(t.colour == thing.colour for t in things) != 1:
            return None
        return rng.choice((f"what shape is the {thing.colour} object?",
                           f"what shape is {thing.colour}?", f"which shape is {thing.colour}?",
                           f"what is the {thing.colour} object?",
                           f"what is the {thing.colour} shape?")), thing.shape
    if kind == "how many of":
        return rng.choice((f"how many {plural(thing.shape)} are there?",
                           f"how many {plural(thing.shape)} do you see?")), NUMBERS[len(shapes)]
    if kind == "size":
        if len(shapes) != 1:
            return None
        return rng.choice((f"how big is the {thing.shape}?", f"what size is the {thing.shape}?",
                           f"is the {thing.shape} large or small?",
                           f"is the {thing.shape} small or large?")), thing.size
    if kind == "relation":
        if len(things) != 2 or things[0].shape == things[1].shape:
            return None
        scale = min(scene.width, scene.height) / REFERENCE_SIDE
        a, b = things if rng.random() < 0.5 else things[::-1]
        for relation in RELATIONS:
            if related(a, b, relation, scale):
                return f"what is {relation} the {b.shape}?", \
                    with_article(f"{a.size} {a.colour} {a.shape}")
        return None
    raise ValueError(kind)


def sample_any_question(rng, scene):
    while True:
        kind = rng.choices(tuple(QUESTION_KINDS), tuple(QUESTION_KINDS.values()))[0]
        asked = sample_question(rng, scene, kind)
        if asked is not None:
            question, answer = asked
            if rng.random() < 0.25:
                question = question[0].upper() + question[1:]
            if rng.random() < 0.08:
                question = question.rstrip("?")
            elif kind == "describe" and rng.random() < 0.2 and not question.endswith("?"):
                question += "."
            if rng.random() < CAPITALS:
                question = question.upper()
            return question, answer


# What it answers where there is no picture.
CHAT = (
    ("hello", "Hello! Ask me for a picture."),
    ("hi", "Hello! Ask me for a picture."),
    ("who are you?", "I am the demo model of diptych: I paint and read coloured shapes."),
    ("what are you?", "I am the demo model of diptych: I paint and read coloured shapes."),
    ("what can you do?", "I paint shapes, edit pictures of them and answer questions about them."),
    ("help", "I paint shapes, edit pictures of them and answer questions about them."),
    ("which shapes do you know?", "circle, square, triangle, star, ring, cross, heart and diamond."),
    ("what shapes do you know?", "circle, square, triangle, star, ring, cross, heart and diamond."),
    ("which colours do you know?",
     "red, green, blue, yellow, purple, orange, cyan, pink, black and white."),
    ("what colors do you know?",
     "red, green, blue, yellow, purple, orange, cyan, pink, black and white."),
    ("which backgrounds do you know?", "white, gray, black, sand and sky."),
    ("thank you", "You are welcome."),
    ("thanks", "You are welcome."),
)
