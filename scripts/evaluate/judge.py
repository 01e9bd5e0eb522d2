"""Judges pictures of the demo's world by classical vision: what is there, and is it what was asked?

`see` names the background and every thing: colour, shape, size, place. Regions of one colour are found
first; the band of mixed colours around a thing belongs to its neighbours; a thing's outline is then
compared with those of `drawing.outline`. What is not clearly one of the world's things is still seen, with
None for what is unclear, so that it counts as wrong. No model takes part.

`judge_spec` and `judge_edit` return complaints; none means right.
"""
import dataclasses
import functools
import itertools
import pathlib
import sys

import cv2
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import drawing  # noqa: E402
from drawing import world  # noqa: E402  it knows where the next one is
import edits  # noqa: E402

SIDE = world.REFERENCE_SIDE  # every picture is looked at with this short side; pixels below are of it
FAR_COLOUR = 55  # RGB distance from which a colour is none of the world's
STAIN = 56  # RGB distance from the background that is a mark on it
THIN, FEW_PIXELS = 2.5, 20  # half the width of what may be an edge, less one; its inner pixels
REACH = 9  # pixels across: how far the mixed colours of an edge go
SPECK_AREA, FRAGMENT_RADIUS = 30, 11.0  # smaller: noise; not a thing but a piece of one
SMALL_RADIUS, LARGE_RADIUS = 26.0, 29.5  # at most, at least; between them it is neither
LIKENESS, LEAD = 0.78, 0.055  # to the best shape (intersection over union), and before the next one
RING_LIKENESS = 0.70  # less, as a ring is thin, but it must be closed:
LEAST_HOLE, MOST_HOLE = 0.15, 0.06  # of the filled outline: in a ring; in anything else
MOST_REGIONS = 100


@dataclasses.dataclass(frozen=True)
class Seen:
    """One thing of a picture; None where it is not clearly any of the world's."""
    shape: str | None
    colour: str | None
    size: str | None
    x: float  # centre and radius, in pixels
    y: float
    r: float
    box: tuple[float, float, float, float]  # left, top, right, bottom

    def words(self):
        return " ".join((self.size or "size?", self.colour or "colour?", self.shape or "shape?"))


@dataclasses.dataclass(frozen=True)
class Sight:
    width: int
    height: int
    background: str | None
    things: tuple[Seen, ...]
    stains: int = 0  # pixels (at the reference side) that are neither background nor thing


@dataclasses.dataclass(eq=False)
class Region:
    """Connected pixels of one colour; bool masks over the whole picture."""
    label: int
    pixels: np.ndarray
    mask: np.ndarray  # its shape: the pixels, and those that something on it covers
    filled: np.ndarray  # with its holes

    @functools.cached_property
    def extent(self):
        return np.count_nonzero(self.filled)


# ---------------------------------------------------------------------------------------------
# Colours


def nearest(colour, table, most=FAR_COLOUR):
    """The name in {name: rgb} that is nearest to this colour, or None where none is near."""
    name = min(table, key=lambda n: np.linalg.norm(np.subtract(table[n], colour)))
    return name if np.linalg.norm(np.subtract(table[name], colour)) < most else None


def border_colour(picture):
    band = np.concatenate([picture[:3].reshape(-1, 3), picture[-3:].reshape(-1, 3),
                           picture[:, :3].reshape(-1, 3), picture[:, -3:].reshape(-1, 3)])
    return np.median(band, axis=0)


def square_distance(pixels, colour):
    """float32 [h, w] of the squared RGB distance."""
    difference = pixels - np.asarray(colour, np.float32)
    return np.einsum("ijk,ijk->ij", difference, difference)


def label_nearest(pixels, colours):
    """uint8 [h, w]: the index of the nearest of `colours` [n, 3]."""
    channels = [np.ascontiguousarray(pixels[..., channel]) for channel in range(3)]
    labels = np.zeros(pixels.shape[:2], np.uint8)
    least = None
    for index, colour in enumerate(colours):  # a third of the time that argmin takes of all scores at once
        score = np.full(labels.shape, (colour ** 2).sum(), np.float32)
        for channel, share in zip(channels, -2 * colour):
            score += channel * share
        if least is None:
            least = score
        else:
            labels[score < least] = index
            np.minimum(least, score, out=least)
    return labels


def present(labels):
    return np.flatnonzero(np.bincount(labels.ravel()))


def mean_colour(pixels, mask):
    return np.array(cv2.mean(pixels, mask)[:3])


def square(size):
    return np.ones((size, size), np.uint8)


def is_between(colour, a, b, most):
    """Is it a mixture of both, up to that distance, and neither of them?"""
    along = np.dot(colour - a, b - a) / max(np.dot(b - a, b - a), 1.0)
    return 0.08 < along < 0.92 and np.linalg.norm(a + along * (b - a) - colour) < most


def is_edge(part, pixels, cores, colours):
    """Is this thin region the band of mixed colours between two others that it runs along?

    `cores` {label: mask} of the others within the same cut-out, `colours` {label: mean colour}. A few
    pixels, as at a star's tips, need only be near both, and their mixture may be less exact.
    """
    area = np.count_nonzero(part)
    share, reach, most = (0.1, 15, 65) if area <= FEW_PIXELS else (0.6, REACH, 42)
    beside = [label for label, core in cores.items()
              if np.count_nonzero(cv2.dilate(core, square(reach))[part]) > share * area]
    own = pixels[part].mean(0)
    return any(is_between(own, colours[a], colours[b], most)
               for a, b in itertools.combinations(beside, 2))


def inner_pixels(labels):
    """{label: uint8 mask} of the pixels whose neighbours have the same label."""
    inner = {}
    for label in present(labels):
        mask = (labels == label).astype(np.uint8)
        core = cv2.erode(mask, square(3), borderType=cv2.BORDER_REPLICATE)
        if core.any():
            inner[label] = core
    return inner


def find_cores(pixels, labels):
    """{label: uint8 mask} of the inner pixels of every region that is no mere edge."""
    inner = inner_pixels(labels)
    colours = {label: mean_colour(pixels, core) for label, core in inner.items()}
    cores = {}
    for label, core in inner.items():
        depth = cv2.distanceTransform(core, cv2.DIST_L2, 3)
        count, parts, stats, _ = cv2.connectedComponentsWithStats(core, connectivity=8)
        kept = np.zeros(count, bool)
        for index in range(1, min(count, MOST_REGIONS)):
            left, top, width, height, _ = stats[index]
            window = (slice(max(0, top - REACH), top + height + REACH),
                      slice(max(0, left - REACH), left + width + REACH))
            part = parts[window] == index
            others = {other: mask[window] for other, mask in inner.items() if other != label}
            kept[index] = (depth[window][part].max() > THIN or
                           not is_edge(part, pixels[window], others, colours))
        if kept.any():
            cores[label] = kept[parts].astype(np.uint8)
    return cores


def segment(pixels, labels):
    """The labels anew: a pixel near an edge takes the nearest colour among those that are really there."""
    cores = find_cores(pixels, labels)
    best = np.full(labels.shape, np.inf, np.float32)
    result = np.zeros_like(labels)
    for label, core in cores.items():
        near = cv2.dilate(core, square(REACH)) > 0
        distance = np.where(near, square_distance(pixels, mean_colour(pixels, core)), np.inf)
        closer = distance < best
        result[closer], best[closer] = label, distance[closer]
    return result


# ---------------------------------------------------------------------------------------------
# Regions and things


def fill(mask):
    contours, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = np.zeros(mask.shape, np.uint8)
    cv2.drawContours(filled, contours, -1, 1, cv2.FILLED)
    return filled > 0


def find_regions(labels):
    """Every region but the background's, the smallest first."""
    regions = []
    for label in present(labels):
        if label == 0:
            continue
        count, parts, stats, _ = cv2.connectedComponentsWithStats((labels == label).astype(np.uint8),
                                                                  connectivity=8)
        for index in range(1, count):
            if stats[index][cv2.CC_STAT_AREA] >= SPECK_AREA:
                mask = parts == index
                regions.append(Region(label, mask, mask, fill(mask)))
    return sorted(regions, key=lambda region: region.extent)[-MOST_REGIONS:]


def seat(region, regions):
    """The regions of one colour that this one lies on; [] where that is the background."""
    around = (cv2.dilate(region.filled.astype(np.uint8), square(5)) > 0) & ~region.filled
    touching = {}
    for other in regions:
        pixels = np.count_nonzero(other.mask & around)
        if pixels > 3 and other.label != region.label:
            touching.setdefault(other.label, []).append((pixels, other))
    for found in touching.values():
        if sum(pixels for pixels, _ in found) > 0.5 * np.count_nonzero(around):
            return [other for _, other in found]
    return []


def uncover(parts, content):
    """The one region of the parts that are left of it around what lies on it."""
    pixels = functools.reduce(np.logical_or, [part.pixels for part in parts])
    mask = functools.reduce(np.logical_or, [part.mask for part in parts], content.filled)
    return Region(parts[0].label, pixels, mask, fill(mask))


def lay_apart(regions):
    """The regions that are things, each as if nothing lay on it."""
    things = list(regions)
    for region in regions:
        below = seat(region, things)
        if region not in things or sum(under.extent for under in below) < 2 * region.extent:
            continue
        if any(under.label == region.label for under in seat(below[0], things)):
            things.remove(region)  # seen through a ring that lies on a thing of this colour
        else:
            things = [thing for thing in things if thing not in below] + [uncover(below, region)]
    return things


# ---------------------------------------------------------------------------------------------
# Shapes

PROPORTIONED = ("star", "ring", "cross", "diamond")  # the variant of the others is none, or a scale
CANVAS, UNIT = 64, 28.0  # of a mask whose area is brought to UNIT squared


def normalised(mask):
    """float32 [CANVAS, CANVAS] of a mask: its centroid in the middle, its area UNIT squared."""
    found = cv2.moments(mask, binaryImage=False)
    area = found["m00"]
    scale = UNIT / area ** 0.5
    x, y = found["m10"] / area, found["m01"] / area
    middle = (CANVAS - 1) / 2
    matrix = np.array([(scale, 0, middle - scale * x), (0, scale, middle - scale * y)])
    if scale < 0.7:  # or the sampling would miss pixels
        mask = cv2.blur(mask, (3, 3))
    return cv2.warpAffine(mask, matrix, (CANVAS, CANVAS), flags=cv2.INTER_LINEAR)


@functools.cache
def templates():
    """[(shape, variant)], and their masks [n, CANVAS * CANVAS]."""
    names = [(shape, variant) for shape in world.SHAPES
             for variant in ((-1.0, -0.5, 0.0, 0.5, 1.0) if shape in PROPORTIONED else (0.0,))]
    masks = [normalised(drawing.coverage(shape, variant, 64, 64, 40, 128, 128))
             for shape, variant in names]
    return names, np.stack(masks).reshape(len(names), -1)


def classify(region):
    """(shape, or None where that is not clear; the likeliest shape and variant) of a Region."""
    names, masks = templates()
    own = normalised(region.mask.astype(np.float32)).reshape(1, -1)
    alike = np.minimum(own, masks).sum(1) / np.maximum(own, masks).sum(1)
    best = int(alike.argmax())
    shape = names[best][0]
    lead = alike[best] - max(value for value, (name, _) in zip(alike, names) if name != shape)
    hole = 1 - np.count_nonzero(region.mask) / region.extent
    if shape == "ring":
        clear = hole >= LEAST_HOLE and alike[best] >= RING_LIKENESS
    else:
        clear = hole <= MOST_HOLE and alike[best] >= LIKENESS
    return (shape if clear and lead >= LEAD else None), names[best]


def size_of(radius):
    if radius < FRAGMENT_RADIUS or SMALL_RADIUS < radius < LARGE_RADIUS:
        return None
    return "small" if radius <= SMALL_RADIUS else "large"


def to_thing(region, pixels, table, factor):
    """The Seen of a region; `factor` is from the picture's pixels to these."""
    own = region.pixels
    depth = cv2.distanceTransform(own.astype(np.uint8), cv2.DIST_L2, 3)
    colour = np.median(pixels[own & (depth >= 0.6 * depth.max())], axis=0)
    shape, likeliest = classify(region)
    area, centre_x, centre_y = drawing.unit_shape(*likeliest)
    found = cv2.moments(region.mask.astype(np.uint8), binaryImage=True)
    radius = (found["m00"] / area) ** 0.5
    x = found["m10"] / found["m00"] + 0.5 - centre_x * radius
    y = found["m01"] / found["m00"] + 0.5 - centre_y * radius
    left, top, width, height = cv2.boundingRect(region.mask.astype(np.uint8))
    return Seen(shape if radius >= FRAGMENT_RADIUS else None, nearest(colour, table),
                size_of(radius), x / factor, y / factor, radius / factor,
                tuple(value / factor for value in (left, top, left + width, top + height)))


def see(picture):
    """The Sight of a picture, uint8 [height, width, 3], red first."""
    height, width = picture.shape[:2]
    factor = SIDE / min(width, height)
    picture = np.ascontiguousarray(picture)
    if factor != 1:
        picture = cv2.resize(picture, (round(width * factor), round(height * factor)),
                             interpolation=cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR)
    pixels = cv2.medianBlur(picture, 3).astype(np.float32)

    ground = border_colour(pixels)
    background = nearest(ground, world.BACKGROUNDS)
    table = {name: rgb for name, rgb in world.COLOURS.items() if not world.clashes(name, background)}
    colours = np.array([ground, *table.values()], np.float32)
    labels = segment(pixels, label_nearest(pixels, colours))
    things = [to_thing(region, pixels, table, factor) for region in lay_apart(find_regions(labels))]

    stain = ((labels == 0) & (square_distance(pixels, ground) > STAIN ** 2)).astype(np.uint8)
    stains = int(cv2.morphologyEx(stain, cv2.MORPH_OPEN, square(5)).sum())
    return Sight(width, height, background, tuple(sorted(things, key=lambda t: (t.y, t.x))), stains)


# ---------------------------------------------------------------------------------------------
# What was asked


def complain_of_ground(sight, background):
    """About all that is no thing; any background will do where that is None."""
    complaints = []
    if sight.background is None or background not in (None, sight.background):
        complaints.append(f"background: {sight.background or 'unclear'}, expected "
                          f"{background or 'one of the world'}")
    if sight.stains > SPECK_AREA:
        complaints.append(f"background: {sight.stains} pixels of it are stained")
    return complaints


def differences(thing, shape, colour, size):
    """In what a Seen differs from what was asked; size None: any."""
    wrong = []
    if thing.colour != colour:
        wrong.append(f"colour {thing.colour or 'unclear'}, expected {colour}")
    if thing.shape != shape:
        wrong.append(f"shape {thing.shape or 'unclear'}, expected {shape}")
    if size not in (None, thing.size):
        wrong.append(f"size {thing.size or 'unclear'}, expected {size}")
    return wrong


def stands(a, b, relation):
    """Does thing a stand in this relation to thing b?"""
    dx, dy = b.x - a.x, b.y - a.y
    if relation == "inside":
        holds = all(ours >= theirs for ours, theirs in zip(a.box[:2], b.box[:2])) and \
            all(ours <= theirs for ours, theirs in zip(a.box[2:], b.box[2:]))
        return holds and np.hypot(dx, dy) < 0.3 * b.r and a.r < 0.6 * b.r
    along, across = {"left of": (dx, dy), "right of": (-dx, dy), "above": (dy, dx),
                     "below": (-dy, dx)}[relation]
    return along > abs(across) and along > 0.6 * (a.r + b.r)


def is_at(thing, place, width, height):
    x, y = thing.x / width, thing.y / height
    return {"left": x < 0.4, "right": x > 0.6, "top": y < 0.4, "bottom": y > 0.6,
            "centre": abs(x - 0.5) < 0.13 and abs(y - 0.5) < 0.13}[place]


def complain_of_order(things, slots, spec, sight):
    """What is wrong where things[i] stands for a thing of spec.groups[slots[i]]."""
    complaints = []
    for thing, slot in zip(things, slots):
        group = spec.groups[slot]
        wrong = differences(thing, group.shape, group.colour, group.size)
        complaints += [f"{thing.words()}: {what}" for what in wrong]
        if spec.place and not is_at(thing, spec.place, sight.width, sight.height):
            complaints.append(f"{thing.words()}: not at the {spec.place}")
    if spec.relation:
        firsts = [thing for thing, slot in zip(things, slots) if slot == 0]
        seconds = [thing for thing, slot in zip(things, slots) if slot == 1]
        complaints += [f"{a.words()}: not {spec.relation} the {b.words()}"
                       for a in firsts for b in seconds if not stands(a, b, spec.relation)]
    return complaints


def judge_sight(sight, spec):
    """Complaints about what was seen; the fewest over all ways to match things and groups."""
    complaints = complain_of_ground(sight, spec.background)
    slots = [slot for slot, group in enumerate(spec.groups) for _ in range(group.count)]
    if len(sight.things) != len(slots):
        seen = ", ".join(thing.words() for thing in sight.things[:8]) or "nothing"
        return complaints + [f"{len(sight.things)} things ({seen}), expected {len(slots)}"]
    orders = [complain_of_order(sight.things, order, spec, sight)
              for order in sorted(set(itertools.permutations(slots)))]
    return complaints + min(orders, key=len)


def judge_spec(picture, spec):
    """Complaints about a picture, uint8 [height, width, 3], that was to show a world.Spec.

    What the spec leaves open may be anything; nothing may be there that it does not name.
    """
    return judge_sight(see(picture), spec)


# ---------------------------------------------------------------------------------------------
# What was to change

SAME_PLACE, SAME_SIZE = 0.08, 1.3  # of the short side; of the larger to the smaller radius
NEW_PLACE = 0.10  # of a thing that another one replaces, or that moves along its line
LEAST_MOVE = 0.10


def complain_of_kept(thing, old, short):
    """What changed of a thing that was to stay as it was."""
    wrong = differences(thing, old.shape, old.colour, None)
    if np.hypot(thing.x - old.x, thing.y - old.y) > SAME_PLACE * short:
        wrong.append("moved")
    if max(thing.r, old.r) > SAME_SIZE * min(thing.r, old.r):
        wrong.append(f"radius {thing.r:.0f}, was {old.r:.0f}")
    return wrong


def is_on_side(thing, side, sight):
    x, y = thing.x / sight.width, thing.y / sight.height
    return {"left": x < 0.45, "right": x > 0.55, "top": y < 0.45, "bottom": y > 0.55}[side]


def complain_of_move(thing, old, side, sight):
    short = min(sight.width, sight.height)
    dx, dy = (thing.x - old.x) / short, (thing.y - old.y) / short
    along, across = {"left": (-dx, dy), "right": (dx, dy), "top": (-dy, dx), "bottom": (dy, dx)}[side]
    here = dataclasses.replace(old, x=thing.x, y=thing.y)
    wrong = complain_of_kept(thing, here, short)
    if along < LEAST_MOVE:
        wrong.append(f"not moved to the {side}")
    if abs(across) > NEW_PLACE:
        wrong.append(f"moved across its way to the {side}")
    return wrong if is_on_side(thing, side, sight) else wrong + [f"not at the {side}"]


def complain_of_changed(thing, edit, sight):
    """What is wrong with the thing that the edit makes, given the Seen that stands for it."""
    new = edit.after.things[edit.index]
    if edit.kind == "move":
        return complain_of_move(thing, edit.before.things[edit.index], edit.side, sight)
    if edit.kind == "add":
        wrong = differences(thing, new.shape, new.colour, new.size if edit.said.size else None)
        if edit.side and not is_on_side(thing, edit.side, sight):
            wrong.append(f"not at the {edit.side}")
        return wrong
    wrong = differences(thing, new.shape, new.colour, new.size)
    if np.hypot(thing.x - new.x, thing.y - new.y) > NEW_PLACE * min(sight.width, sight.height):
        wrong.append("moved")
    return wrong


def judge_edit(picture, edit):
    """Complaints about a picture, uint8 [height, width, 3], that was to be `edit.before` after a
    edits.Edit: the change must be there, and nothing else may have changed."""
    sight = see(picture)
    short = min(sight.width, sight.height)
    complaints = complain_of_ground(sight, edit.after.background)
    if (sight.width, sight.height) != (edit.before.width, edit.before.height):
        complaints.append(f"{sight.width}x{sight.height}, expected "
                          f"{edit.before.width}x{edit.before.height}")
    if len(sight.things) != len(edit.after.things):
        seen = ", ".join(thing.words() for thing in sight.things[:8]) or "nothing"
        return complaints + [f"{len(sight.things)} things ({seen}), expected {len(edit.after.things)}"]
    changed = edit.index if edit.kind not in ("remove", "background") else None

    def complain(things):
        found = []
        for index, (thing, new) in enumerate(zip(things, edit.after.things)):
            wrong = complain_of_changed(thing, edit, sight) if index == changed else \
                complain_of_kept(thing, new, short)
            found += [f"{thing.words()}: {what}" for what in wrong]
        return found

    return complaints + min(map(complain, itertools.permutations(sight.things)), key=len)
