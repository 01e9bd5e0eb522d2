"""Scenes to pixels: every shape is a signed distance in pixels, covered over one pixel's width.

The distances of the star and the heart are Inigo Quilez's (iquilezles.org/articles/distfunctions2d).
"""
import torch

import world

PARAMETERS = 8  # per thing: shape, r, g, b, x, y, radius, variant


def pack(scenes):
    """float32 [n, 3 + 3 * 8] rows for `render`: background, then three things (radius 0: none)."""
    rows = torch.zeros(len(scenes), 3 + world.MAX_THINGS * PARAMETERS)
    for row, scene in zip(rows, scenes):
        values = list(world.BACKGROUNDS[scene.background])
        for thing in scene.things:
            values += [world.SHAPES.index(thing.shape), *world.COLOURS[thing.colour], thing.x,
                       thing.y, thing.r, thing.variant]
        row[:len(values)] = torch.tensor(values, dtype=torch.float32)
    return rows


def _box(x, y, half_x, half_y):
    dx, dy = x.abs() - half_x, y.abs() - half_y
    return torch.hypot(dx.clamp(min=0), dy.clamp(min=0)) + torch.maximum(dx, dy).clamp(max=0)


def _triangle(x, y, r):  # pointing up; y grows downwards, so it is turned
    k = 3 ** 0.5
    y = -y
    side = r * k / 2  # half of the side, of the circumradius r
    x = x.abs() - side
    y = y + side / k
    swap = x + k * y > 0
    x, y = torch.where(swap, (x - k * y) / 2, x), torch.where(swap, (-k * x - y) / 2, y)
    x = x - torch.minimum(torch.maximum(x, -2 * side), torch.zeros_like(x))
    return -torch.hypot(x, y) * torch.sign(y)


def _star(x, y, r, inner):
    k1x, k1y = 0.809016994375, -0.587785252292
    x, y = x.abs(), -y
    d = 2 * (k1x * x + k1y * y).clamp(min=0)
    x, y = x - d * k1x, y - d * k1y
    d = 2 * (-k1x * x + k1y * y).clamp(min=0)
    x, y = x + d * k1x, y - d * k1y
    x, y = x.abs(), y - r
    bx, by = -inner * k1y, inner * k1x - 1
    h = torch.minimum(((x * bx + y * by) / (bx * bx + by * by)).clamp(min=0), r)
    return torch.hypot(x - bx * h, y - by * h) * torch.sign(y * bx - x * by)


def _heart(x, y, r):
    scale = 1.66 * r  # of a heart whose lobes reach 1.10 above its tip
    x, y = x.abs() / scale, 0.56 - y / scale
    upper = torch.hypot(x - 0.25, y - 0.75) - 2 ** 0.5 / 4
    along = 0.5 * (x + y).clamp(min=0)
    lower = torch.minimum(torch.hypot(x, y - 1), torch.hypot(x - along, y - along)) * torch.sign(x - y)
    return torch.where(x + y > 1, upper, lower) * scale


def _distance(shape, x, y, r, variant):
    """Of every pixel to the outline, negative inside. All [n, h, w] or broadcast to it."""
    diamond_x, diamond_y = r * (0.86 + 0.06 * variant), r * 1.06
    cross = torch.minimum(_box(x, y, r * 0.98, r * (0.33 + 0.03 * variant)),
                          _box(x, y, r * (0.33 + 0.03 * variant), r * 0.98))
    ring = r * (0.40 + 0.05 * variant)  # its width
    options = (
        torch.hypot(x, y) - r,
        _box(x, y, r * (0.86 + 0.04 * variant), r * (0.86 + 0.04 * variant)),
        _triangle(x, y - 0.12 * r, r * 1.12),
        _star(x, y - 0.03 * r, r * 1.08, 0.44 + 0.04 * variant),
        (torch.hypot(x, y) - (r - ring / 2)).abs() - ring / 2,
        cross,
        _heart(x, y, r),
        ((x.abs() / diamond_x + y.abs() / diamond_y - 1) *
         diamond_x * diamond_y / torch.hypot(diamond_x, diamond_y)),
    )
    distance = torch.zeros_like(options[0])
    for index, option in enumerate(options):
        distance = torch.where(shape == index, option, distance)
    return distance


def render(rows, width, height):
    """float32 [n, 3, height, width] in 0..255 of packed scenes, on the device of `rows`."""
    y = (torch.arange(height, device=rows.device, dtype=torch.float32) + 0.5).view(1, -1, 1)
    x = (torch.arange(width, device=rows.device, dtype=torch.float32) + 0.5).view(1, 1, -1)
    picture = rows[:, :3, None, None].expand(-1, 3, height, width)
    for index in range(world.MAX_THINGS):
        first = 3 + index * PARAMETERS
        values = rows[:, first:first + PARAMETERS, None, None]
        shape, centre_x, centre_y, r, variant = (values[:, i] for i in (0, 4, 5, 6, 7))
        distance = _distance(shape, x - centre_x, y - centre_y, r, variant)
        cover = torch.where(r > 0, (0.5 - distance).clamp(0, 1), 0.0).unsqueeze(1)
        picture = picture + cover * (values[:, 1:4] - picture)
    return picture


def to_bytes(picture):
    return picture.round().clamp(0, 255).to(torch.uint8)
