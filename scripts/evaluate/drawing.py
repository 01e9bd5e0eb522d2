"""The world's shapes as outlines, and scenes drawn from them.

The pictures are those of train_demo/render.py, within the rounding of an anti-aliased edge (a test),
without torch: the set-up for a CPU brings a libtorch that Python cannot import. The judge compares
what it sees with these outlines.
"""
import functools
import math
import pathlib
import sys

import cv2
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train_demo"))
import world  # noqa: E402

FINE = 8  # an edge is drawn this much larger, then averaged
SHIFT = 4  # bits of a fraction in OpenCV's coordinates


def _arc(x, y, r, start, end, steps):
    angles = np.linspace(start, end, steps)
    return np.stack([x + r * np.cos(angles), y + r * np.sin(angles)], axis=1)


def _box(half_x, half_y):
    return np.array([(-half_x, -half_y), (half_x, -half_y), (half_x, half_y), (-half_x, half_y)])


def _star(inner):
    angles = math.pi * np.arange(10) / 5
    radii = np.where(np.arange(10) % 2 == 0, 1.08, 1.08 * inner)
    return np.stack([radii * np.sin(angles), 0.03 - radii * np.cos(angles)], axis=1)


def _cross(arm):
    long = 0.98
    quarter = np.array([(arm, -long), (arm, -arm), (long, -arm)])
    x, y = quarter[:, 0], quarter[:, 1]
    return np.concatenate([quarter, np.stack([-y, x], 1), np.stack([-x, -y], 1), np.stack([y, -x], 1)])


def _heart():
    right = np.concatenate([[(0.0, 0.0)], _arc(0.25, 0.75, 2 ** 0.5 / 4, -math.pi / 4,
                                               3 * math.pi / 4, 40)])
    left = right[::-1] * (-1, 1)
    points = np.concatenate([right, left[:-1]])
    return np.stack([1.66 * points[:, 0], 1.66 * (0.56 - points[:, 1])], axis=1)


def outline(shape, variant=0.0):
    """Polygons [n, 2] around the centre of a thing of radius 1, y downwards; the second is a hole."""
    circle = _arc(0, 0, 1, 0, 2 * math.pi, 120)
    half = 0.86 + 0.04 * variant
    return {
        "circle": lambda: [circle],
        "square": lambda: [_box(half, half)],
        "triangle": lambda: [np.array([(0, -1.0), (1.12 * 3 ** 0.5 / 2, 0.68),
                                       (-1.12 * 3 ** 0.5 / 2, 0.68)])],
        "star": lambda: [_star(0.44 + 0.04 * variant)],
        "ring": lambda: [circle, circle * (0.60 - 0.05 * variant)],
        "cross": lambda: [_cross(0.33 + 0.03 * variant)],
        "heart": lambda: [_heart()],
        "diamond": lambda: [np.array([(0, -1.06), (0.86 + 0.06 * variant, 0), (0, 1.06),
                                      (-0.86 - 0.06 * variant, 0)])],
    }[shape]()


def coverage(shape, variant, x, y, r, width, height, turn=0.0):
    """float32 [height, width] in 0..1: how much of each pixel the shape covers, turned clockwise by so many
    radians."""
    canvas = np.zeros((height * FINE, width * FINE), np.uint8)
    turned = np.array([(math.cos(turn), math.sin(turn)), (-math.sin(turn), math.cos(turn))])
    polygons = [np.round(((points @ turned * r + (x, y)) * FINE - 0.5) * (1 << SHIFT)).astype(np.int32)
                for points in outline(shape, variant)]
    cv2.fillPoly(canvas, polygons, 255, cv2.LINE_8, SHIFT)
    return cv2.resize(canvas, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


def paint(picture, shape, variant, colour, x, y, r, turn=0.0):
    """Draws a thing into float32 [height, width, 3]."""
    height, width = picture.shape[:2]
    reach = int(1.2 * r) + 2
    left, top = max(0, int(x) - reach), max(0, int(y) - reach)
    right, bottom = min(width, left + 2 * reach + 2), min(height, top + 2 * reach + 2)
    cover = coverage(shape, variant, x - left, y - top, r, right - left, bottom - top, turn)[..., None]
    part = picture[top:bottom, left:right]
    part += cover * (np.array(colour, np.float32) - part)


def draw(scene):
    """uint8 [height, width, 3], red first."""
    picture = np.empty((scene.height, scene.width, 3), np.float32)
    picture[:] = world.BACKGROUNDS[scene.background]
    for thing in scene.things:
        paint(picture, thing.shape, thing.variant, world.COLOURS[thing.colour], thing.x, thing.y, thing.r)
    return np.clip(np.round(picture), 0, 255).astype(np.uint8)


@functools.cache
def unit_shape(shape, variant):
    """(area, centroid x, centroid y) of the shape of radius 1."""
    areas, moments = [], []
    for points in outline(shape, variant):
        found = cv2.moments(points.astype(np.float32).reshape(-1, 1, 2))
        areas.append(abs(found["m00"]))
        moments.append((abs(found["m00"]) * found["m10"] / found["m00"],
                        abs(found["m00"]) * found["m01"] / found["m00"]))
    area = areas[0] - sum(areas[1:])
    return (area, *((moments[0][i] - sum(m[i] for m in moments[1:])) / area for i in (0, 1)))
