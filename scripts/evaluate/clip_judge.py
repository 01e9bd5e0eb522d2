"""Judges clips of the demo's world by classical tracking: what is there, how does it move, is it what was asked?

`watch` separates things from the background in every frame, links them to tracks, and names of each track shape,
colour and motion, with None for what is not clear. Colours and outlines are those of the pictures' judge (judge.py).
No model takes part.

`judge_caption`, `judge_continued`, `judge_edited` and `judge_answer` return complaints "kind: what is wrong"; none
means right.
"""
import dataclasses
import functools
import itertools
import math
import re

import cv2
import numpy as np

import film as films
import judge
from judge import drawing, world
import clips

FAR = 38  # RGB distance from which a pixel is not background
LEAST_AREA = 12  # pixels at the reference side: smaller is noise
BRIEF = 3  # frames: what is seen in fewer is a stain
STAINED = 0.1  # of the frames: more with stains are too many
LINK, GAP = 0.17, 4  # of the short side, frames: how far and how long a thing may be lost from one sight to the next
AGREE = 0.8  # of the frames must show the shape and the colour that the whole track has
# As in judge.py, of the mean over the frames; of small things, whose outline is of few pixels, less is asked.
LIKENESS, RING_LIKENESS, LEAD = 0.73, 0.66, 0.03
SMALL, SMALL_LIKENESS, SMALL_LEAD = 11.0, 0.64, 0.006  # radius, at the reference side
FRAME_LIKENESS, TINY = 0.6, 9.0  # in a single frame; of things with a smaller radius no single frame is looked at
ANGLES, REACH = 120, 10  # of a full turn; of these a thing may turn by so many from one frame to the next
NOTCHED, SOFTNESS = ("star", "cross"), (2.5, 4.0)  # standard deviation on judge.CANVAS
CALM = 2e-6  # per squared step of an angle: what is as alike at many angles does not turn

# What is a motion, and what is none; between them it is unclear.
MOVED, UNMOVED, ASTRAY = 0.14, 0.06, 0.09  # of the side along its way; of the short side; across its way
SCALED, UNSCALED = 1.3, 1.2  # ratio of the radii
TURNED, UNTURNED = math.radians(90), math.radians(32)
GONE = 0.15  # of the frames, at one end
BACK, JUMP = 0.03, 0.35  # of the short side, of the whole way: in one frame

# What is the same.
SAME_PLACE, FAR_PLACE, SAME_RADIUS = 0.07, 0.13, 1.25  # mean and largest distance, by the short side; ratio
SAME_FRAMES = 2  # at the beginning and the end of what is seen
SAME_PICTURE = 20.0  # dB


@dataclasses.dataclass(frozen=True, eq=False)
class Spot:
    """A thing in one frame; its mask is brought to a standard size (judge.normalised)."""
    x: float  # centroid, in pixels
    y: float
    area: float
    colour: np.ndarray
    mask: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Track:
    """A thing over all frames; None where something is not clearly any of the world's."""
    shape: str | None
    colour: str | None
    motion: str | None
    why: str  # of a motion that is unclear
    seen: np.ndarray  # bool [frames]
    x: np.ndarray  # of the centre, in pixels; NaN where it is not seen
    y: np.ndarray
    r: np.ndarray

    def words(self):
        return f"{self.colour or 'colour?'} {self.shape or 'shape?'}"


@dataclasses.dataclass(frozen=True, eq=False)
class Watched:
    width: int
    height: int
    frames: int
    background: str | None
    steady: bool  # the background, over the frames
    stained: int  # frames with something that is no thing
    tracks: tuple[Track, ...]

    @property
    def short(self):
        return min(self.width, self.height)

    @property
    def scale(self):
        return self.short / clips.REFERENCE_SIDE


# ---------------------------------------------------------------------------------------------
# Frames to spots


def spot_of(pixels, ground, part, stats):
    """The Spot of one component: how much of each pixel around it has its colour is its mask."""
    left, top, width, height, _ = stats
    window = (slice(max(0, top - 2), top + height + 2), slice(max(0, left - 2), left + width + 2))
    inside, near = part[window], pixels[window]
    depth = cv2.distanceTransform(np.pad(inside.astype(np.uint8), 1), cv2.DIST_L2, 3)[1:-1, 1:-1]
    colour = np.median(near[depth >= 0.6 * depth.max()], axis=0)
    line = colour - ground
    cover = np.clip((near - ground) @ line / (line @ line), 0, 1)
    cover *= cv2.dilate(inside.astype(np.uint8), judge.square(5))
    found = cv2.moments(cover.astype(np.float32))
    return Spot(window[1].start + found["m10"] / found["m00"] + 0.5, window[0].start + found["m01"] / found["m00"] + 0.5,
                found["m00"], colour, judge.normalised(cover.astype(np.float32)))


def spots_of(pixels, ground, scale):
    """[Spot] of a frame, float32 [height, width, 3]."""
    far = (judge.square_distance(pixels, ground) > FAR ** 2).astype(np.uint8)
    count, parts, stats, _ = cv2.connectedComponentsWithStats(far, connectivity=8)
    return [spot_of(pixels, ground, parts == index, stats[index]) for index in range(1, min(count, judge.MOST_REGIONS))
            if stats[index][cv2.CC_STAT_AREA] >= LEAST_AREA * scale ** 2]


# ---------------------------------------------------------------------------------------------
# Spots to tracks


def link(frames, short):
    """[{frame: Spot}]: every spot goes on with what was nearest to it before, or begins something new."""
    found = []
    for number, spots in enumerate(frames):
        pairs = []
        for track, spot in itertools.product(found, spots):
            last = max(track)
            distance = math.hypot(track[last].x - spot.x, track[last].y - spot.y)
            if number - last <= GAP and distance < LINK * short:
                pairs.append((distance, id(track), id(spot), track, spot))
        taken = set()
        for _, one, other, track, spot in sorted(pairs, key=lambda pair: pair[0]):
            if one not in taken and other not in taken:
                track[number] = spot
                taken |= {one, other}
        found += [{number: spot} for spot in spots if id(spot) not in taken]
    return found


def polar(mask):
    """float32 [ANGLES, radii] around the middle."""
    middle = (judge.CANVAS - 1) / 2
    return cv2.warpPolar(mask, (24, ANGLES), (middle, middle), 30, cv2.INTER_LINEAR)


def follow_angles(masks, areas):
    """How far each mask is turned against the first one, in radians, clockwise: each is compared with the largest,
    close to the angle of its neighbour."""
    views = np.stack([polar(mask) for mask in masks])
    base = int(np.argmax(areas))
    waves = np.fft.rfft(views, axis=1)
    alike = np.fft.irfft((waves * waves[base].conj()).sum(2), ANGLES, axis=1)  # [masks, angles]
    squares = np.square(views).sum((1, 2))
    unlike = (squares[:, None] + squares[base] - 2 * alike) / views[0].size
    steps = np.arange(-REACH, REACH + 1)
    angles = np.zeros(len(masks), int)
    for order in (range(base + 1, len(masks)), range(base - 1, -1, -1)):
        angle = 0
        for index in order:
            angle += steps[np.argmin(unlike[index, (angle + steps) % ANGLES] + CALM * steps ** 2)]
            angles[index] = angle
    return (angles - angles[0]) * (2 * math.pi / ANGLES)


def turn_back(mask, angle):
    middle = (judge.CANVAS - 1) / 2
    matrix = cv2.getRotationMatrix2D((middle, middle), math.degrees(angle), 1.0)
    return cv2.warpAffine(mask, matrix, mask.shape[::-1], flags=cv2.INTER_LINEAR)


@functools.cache
def outlines():
    """As judge.templates, and those with deep notches with their notches half filled, too: what is as small as few
    pixels keeps no sharp corners."""
    names, masks = judge.templates()
    masks = list(masks.reshape(len(names), judge.CANVAS, judge.CANVAS))
    sharp = [(name, mask) for name, mask in zip(names, masks) if name[0] in NOTCHED]
    for softness in SOFTNESS:
        rounded = [cv2.GaussianBlur(mask, (0, 0), softness) for _, mask in sharp]
        masks += [judge.normalised((mask > 0.5).astype(np.float32)) for mask in rounded]
        names = names + [name for name, _ in sharp]
    return names, np.stack(masks).reshape(len(names), -1)


def likeness(masks):
    """[masks, outlines]: intersection over union."""
    _, templates = outlines()
    own = np.stack(masks).reshape(len(masks), 1, -1)
    return np.minimum(own, templates).sum(2) / np.maximum(own, templates).sum(2)


def name_shape(masks, areas, scale):
    """(shape, or None where that is not clear; the likeliest shape and variant) of upright masks."""
    names, _ = outlines()
    weights = np.asarray(areas) / np.sum(areas)
    alike = likeness([np.tensordot(weights, np.stack(masks), 1).astype(np.float32)])[0]
    best = int(alike.argmax())
    shape = names[best][0]
    same = np.array([name == shape for name, _ in names])
    radii = np.sqrt(np.asarray(areas) / drawing.unit_shape(*names[best])[0]) / scale
    least, lead = (SMALL_LIKENESS, SMALL_LEAD) if radii.max() < SMALL else \
        (RING_LIKENESS if shape == "ring" else LIKENESS, LEAD)
    clear = alike[best] >= least and alike[best] - alike[~same].max() >= lead
    asked = [mask for mask, r in zip(masks, radii) if r >= TINY]
    if clear and asked:
        each = likeness(asked)
        agree = (each[:, same].max(1) > each[:, ~same].max(1)) & (each[:, same].max(1) > FRAME_LIKENESS)
        clear = agree.mean() >= AGREE
    return (shape if clear else None), names[best]


def name_colour(spots, background):
    table = {name: rgb for name, rgb in world.COLOURS.items() if not world.clashes(name, background)}
    named = [judge.nearest(spot.colour, table) for spot in spots]
    colour = judge.nearest(np.median([spot.colour for spot in spots], axis=0), table)
    return colour if colour and named.count(colour) >= AGREE * len(named) else None


def ends(values, count=2):
    """The means of the first and the last of these."""
    count = min(count, len(values))
    return np.mean(values[:count]), np.mean(values[-count:])


def name_way(x, y, short, width, height):
    """(one of TRAVELS, "" for none, None for unclear; why it is unclear)."""
    (x0, x1), (y0, y1) = ends(x), ends(y)
    dx, dy = x1 - x0, y1 - y0
    if max(np.ptp(x), np.ptp(y)) < UNMOVED * short:
        return "", ""
    sideways = abs(dx) / width >= abs(dy) / height
    along, across, length = (x, y, width) if sideways else (y, x, height)
    way = dx if sideways else dy
    if abs(way) < MOVED * length:
        return None, f"moves by {abs(way) / length:.2f} of the side"
    if np.ptp(across) > ASTRAY * short:
        return None, "moves askew"
    steps = np.diff(along) * np.sign(way)
    if steps.min() < -BACK * short or steps.max() > JUMP * abs(way):
        return None, "moves unsteadily"
    names = (clips.RIGHT, clips.LEFT) if sideways else (clips.DOWN, clips.UP)
    return names[0] if way > 0 else names[1], ""


def name_scaling(r):
    """As `name_way`, of growing and shrinking."""
    first, last = ends(r)
    ratio = max(first, last) / min(first, last)
    if ratio < UNSCALED and r.max() < SCALED * r.min():
        return "", ""
    if ratio < SCALED:
        return None, f"its radius changes by {ratio:.2f}"
    steps = np.diff(np.log(r)) * np.sign(last - first)
    if steps.min() < -0.15 or steps.max() > max(0.2, JUMP * math.log(ratio)):
        return None, "its radius changes unsteadily"
    return clips.GROWS if last > first else clips.SHRINKS, ""


def name_turning(angles, shape):
    """As `name_way`, of spinning."""
    if shape in clips.ROUND or np.abs(angles).max() < UNTURNED:
        return "", ""
    if abs(angles[-1]) < TURNED:
        return None, f"turns by {math.degrees(np.abs(angles).max()):.0f} degrees"
    return clips.SPINS, ""


def name_presence(seen):
    """As `name_way`, of appearing and disappearing."""
    shown = np.flatnonzero(seen)
    early, late = shown[0], len(seen) - 1 - shown[-1]
    if len(shown) < (shown[-1] - shown[0] + 1) * 0.9:
        return None, "flickers"
    if max(early, late) <= 1:
        return "", ""
    if min(early, late) > 1:
        return None, "appears and disappears"
    if max(early, late) < GONE * len(seen):
        return None, f"is missing in {max(early, late)} frames"
    return (clips.APPEARS, "") if early else (clips.DISAPPEARS, "")


def name_motion(parts):
    """(motion or None, why) of the four kinds of motion: exactly one may be there."""
    unclear = [why for name, why in parts if name is None]
    named = [name for name, _ in parts if name]
    if unclear or len(named) > 1:
        return None, ", ".join(named + unclear)
    return (named[0] if named else clips.STILL), ""


def track_of(linked, size, count, background):
    """The Track of {frame: Spot} of a clip of so many frames."""
    width, height = size
    short = min(size)
    numbers = sorted(linked)
    spots = [linked[number] for number in numbers]
    areas = [spot.area for spot in spots]
    angles = follow_angles([spot.mask for spot in spots], areas)
    # A thing is upright when it is first seen whole: the frame in which it comes or goes may show a part of it.
    comes, goes = numbers[0] > 0, numbers[-1] < count - 1
    angles = angles - angles[int(comes)]
    upright = [turn_back(spot.mask, angle) for spot, angle in zip(spots, angles)]
    shape, likeliest = name_shape(upright, areas, short / clips.REFERENCE_SIDE)

    # From the centroid to the centre, which things turn around.
    area, off_x, off_y = drawing.unit_shape(*likeliest)
    seen = np.zeros(count, bool)
    seen[numbers] = True
    x, y, r = (np.full(count, np.nan) for _ in range(3))
    r[numbers] = np.sqrt(np.array(areas) / area)
    cos, sin = np.cos(angles), np.sin(angles)
    x[numbers] = [spot.x for spot in spots] - r[numbers] * (off_x * cos - off_y * sin)
    y[numbers] = [spot.y for spot in spots] - r[numbers] * (off_x * sin + off_y * cos)

    inner, kept = numbers[comes:len(numbers) - goes], angles[comes:len(numbers) - goes]
    motion, why = name_motion([name_presence(seen), name_way(x[inner], y[inner], short, width, height),
                               name_scaling(r[inner]), name_turning(kept, shape)])
    return Track(shape, name_colour(spots, background), motion, why, seen, x, y, r)


def watch(film):
    """The Watched of a clip, uint8 [frames, height, width, 3], red first."""
    count, height, width = film.shape[:3]
    scale = min(width, height) / clips.REFERENCE_SIDE
    grounds = np.array([judge.border_colour(picture) for picture in film])
    ground = np.median(grounds, axis=0)
    background = judge.nearest(ground, world.BACKGROUNDS)
    steady = all(judge.nearest(each, world.BACKGROUNDS) == background and np.linalg.norm(each - ground) < FAR
                 for each in grounds)
    frames = [spots_of(picture.astype(np.float32), ground.astype(np.float32), scale) for picture in film]
    linked = link(frames, min(width, height))
    stained = {number for track in linked if len(track) < BRIEF for number in track}
    tracks = [track_of(track, (width, height), count, background) for track in linked if len(track) >= BRIEF]
    return Watched(width, height, count, background, steady, len(stained), tuple(tracks))


# ---------------------------------------------------------------------------------------------
# What was asked


def complain_of_ground(watched, background):
    """About all that is no thing; any background will do where that is None."""
    complaints = []
    if watched.background is None or background not in (None, watched.background):
        complaints.append(f"background: {watched.background or 'unclear'}, expected "
                          f"{background or 'one of the world'}")
    if not watched.steady:
        complaints.append("background: changes")
    if watched.stained > STAINED * watched.frames:
        complaints.append(f"stains: in {watched.stained} frames")
    return complaints


def is_motion(track, motion):
    unseen = motion == clips.SPINS and track.motion == clips.STILL and track.shape in clips.ROUND
    return unseen or track.motion == motion


def complain_of_looks(track, shape, colour, motion):
    wrong = []
    if track.colour != colour:
        wrong.append(f"colour: {track.colour or 'unclear'}, expected {colour}")
    if track.shape != shape:
        wrong.append(f"shape: {track.shape or 'unclear'}, expected {shape}")
    if not is_motion(track, motion):
        wrong.append(f"motion: {track.words()} {track.motion or f'is unclear ({track.why})'}, expected {motion}")
    return wrong


def size_of(track, number, scale):
    """small, None or large: the radius halfway, as of one of `number` things."""
    first, last = ends(track.r[track.seen])
    r = max(track.r[track.seen].mean(), 0.0) / scale
    if track.motion in (clips.GROWS, clips.SHRINKS):
        r = (first + last) / (sum(clips.GROWN) * scale)
    radii = clips.RADII[number]
    return "small" if r < (radii["small"] + 2 * radii[None]) / 3 else \
        "large" if r > (radii["large"] + 2 * radii[None]) / 3 else None


def complain_of_things(watched, asked, complain):
    """`complain(track, thing)` over the assignment of tracks to things with the fewest complaints."""
    tracks = watched.tracks
    complaints = []
    if len(tracks) != len(asked):
        seen = ", ".join(track.words() for track in tracks[:6]) or "nothing"
        complaints.append(f"count: {len(tracks)} things ({seen}), expected {len(asked)}")
        if len(tracks) < len(asked):
            return complaints
    orders = [[wrong for track, thing in zip(order, asked) for wrong in complain(track, thing)]
              for order in itertools.islice(itertools.permutations(tracks, len(asked)), 120)]
    return complaints + min(orders, key=len)


def judge_watched(watched, spec):
    """Complaints about a clip that was to show a clips.ClipSpec; what that leaves open may be anything."""
    def complain(track, said):
        wrong = complain_of_looks(track, said.shape, said.colour, said.motion)
        size = size_of(track, len(spec.things), watched.scale)
        if said.size not in (None, size):
            wrong.append(f"size: {size or 'medium'}, expected {said.size}")
        return wrong

    return complain_of_ground(watched, spec.background) + complain_of_things(watched, spec.things, complain)


def judge_caption(film, spec):
    return judge_watched(watch(film), spec)


def likeness_of_pictures(a, b):
    """PSNR in dB."""
    return 10 * math.log10(255 ** 2 / max(np.square(a.astype(np.float32) - b).mean(), 1e-3))


def judge_continued(film, clip):
    """Complaints about a clip that was to begin with the first frame of `clip` and to go on as its things do."""
    wrong = complain_of_size(film, clip)
    if wrong:
        return wrong
    watched = watch(film)
    given = films.draw(dataclasses.replace(clip, frames=2))[0]
    psnr = likeness_of_pictures(film[0], given)
    complaints = [f"first frame: {psnr:.1f} dB from the given picture"] if psnr < SAME_PICTURE else []

    def complain(track, thing):
        wrong = complain_of_looks(track, thing.shape, thing.colour, thing.motion)
        first = int(np.argmax(track.seen))
        distance = math.hypot(track.x[first] - thing.start[0], track.y[first] - thing.start[1])
        ratio = max(track.r[first], thing.radii[0]) / min(track.r[first], thing.radii[0])
        if first > 1 or distance > SAME_PLACE * watched.short or ratio > SAME_RADIUS:
            wrong.append(f"first frame: {track.words()} is not as in the given picture")
        return wrong

    return complaints + complain_of_ground(watched, clip.background) + \
        complain_of_things(watched, clip.things, complain)


def complain_of_size(film, clip):
    count, height, width = film.shape[:3]
    if (width, height) != (clip.width, clip.height):
        return [f"format: {width}x{height}, expected {clip.width}x{clip.height}"]
    return [] if count == clip.frames else [f"format: {count} frames, expected {clip.frames}"]


def judge_edited(film, edit):
    """Complaints about a clip that was to be `edit.before` after a clips.ClipEdit: the change must be there, and all
    else, the motion above all, as it was."""
    after = edit.after
    wrong = complain_of_size(film, after)
    if wrong:
        return wrong
    watched = watch(film)
    done = np.arange(after.frames) / (after.frames - 1)

    def complain(track, thing):
        wrong = complain_of_looks(track, thing.shape, thing.colour, thing.motion)
        number = np.arange(after.frames)
        shown = (number >= thing.seen[0]) & (number < thing.seen[1])
        both = shown & track.seen
        if np.count_nonzero(shown != track.seen) > SAME_FRAMES or not both.any():
            return wrong + [f"way: {track.words()} is seen in {np.count_nonzero(track.seen)} frames, was in "
                            f"{np.count_nonzero(shown)}"]
        x, y, r = films.place(thing, done)
        distance = np.hypot(track.x - x, track.y - y)[both] / watched.short
        if distance.mean() > SAME_PLACE or distance.max() > FAR_PLACE:
            wrong.append(f"way: {track.words()} is elsewhere than it was")
        ratio = np.exp(np.abs(np.log(track.r / r))[both].mean())
        if ratio > SAME_RADIUS:
            wrong.append(f"way: {track.words()} is {ratio:.2f} times larger or smaller than it was")
        return wrong

    return complain_of_ground(watched, after.background) + complain_of_things(watched, after.things, complain)


# ---------------------------------------------------------------------------------------------
# Answers


@functools.cache
def worded_motions():
    """{wording: motion}, the longest first, and a pattern of them all."""
    found = {"rises": clips.UP, "rising": clips.UP, "falls": clips.DOWN, "falling": clips.DOWN}
    for motion, ways in clips.WAYS.items():
        found |= {f"{verb} {way}": motion for verbs in clips.VERBS for verb in verbs for way in ways}
    for motion, deeds in clips.DEEDS.items():
        found |= {word: motion for deed in deeds for word in deed}
    return found, re.compile(rf"\b({'|'.join(sorted(found, key=len, reverse=True))})\b")


def meaning(text):
    """What an answer says: its statements in any order, each in one wording."""
    words = re.sub(r"[^a-z]+", " ", text.lower().replace("grey", "gray")).split()
    kept = " ".join(word for word in words if word not in ("a", "an", "the", "it", "is", "are"))
    motions, pattern = worded_motions()
    kept = pattern.sub(lambda found: motions[found[0]].replace(" ", "-"), kept)
    head, _, ground = kept.partition(" on ")
    return tuple(sorted(re.split(" while | and ", head))), ground.removesuffix("background").strip()


def judge_answer(text, expected):
    return [] if meaning(text) == meaning(expected) else [f'answer: "{text.strip()}", expected "{expected}"']
