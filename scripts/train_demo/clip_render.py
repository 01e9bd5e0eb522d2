"""Clips to frames, with the outlines of render.py."""
import functools

import torch
import torch.nn.functional as F

import render
import wan_autoencoder
import world

THINGS = 2
# Per thing: shape, r, g, b, start x, y, end x, y, radius at start, end, turn, seen from, until, variant, other shape,
# angle at the start.
PARAMETERS = 16
# Weights of errors: of every pixel; of a thing's and those up to so many pixels around it, all together, where that is
# no less than this share of the clip.
UNNOTICED, NOTICED, NEAR, LEAST_SHARE = 0.3, 0.35, 3.0, 0.012
LEAST_OWNED = 0.05  # of the pixels and frames of a latent row, at least, that a thing covers which it is said to show


def pack(films):
    """float32 [n, 3 + 2 * 16] rows for `frames`: background, then two things (radius 0: none)."""
    rows = torch.zeros(len(films), 3 + THINGS * PARAMETERS)
    for row, clip in zip(rows, films):
        values = list(world.BACKGROUNDS[clip.background])
        for thing in clip.things:
            values += [world.SHAPES.index(thing.shape), *(thing.tint or world.COLOURS[thing.colour]), *thing.start,
                       *thing.end, *thing.radii, thing.turn, *thing.seen, thing.variant,
                       world.SHAPES.index(thing.morph or thing.shape), thing.tilt]
        row[:len(values)] = torch.tensor(values, dtype=torch.float32)
    return rows


def exact(shape, x, y, radius, variant):
    return render._distance(shape, x, y, radius, variant)


REACH, FINE, VARIANTS = 1.5, 385, 5  # of a table: radii from its middle to its edge; points a side; variants of a shape


@functools.cache
def table(device):
    """[1, 1, shape and variant, FINE, FINE]: distances of pixels to the outlines of things of radius 1."""
    places = torch.linspace(-REACH, REACH, FINE, device=device)
    variants = torch.linspace(-1, 1, VARIANTS, device=device).repeat(len(world.SHAPES)).view(-1, 1, 1)
    shapes = torch.arange(len(world.SHAPES), device=device).repeat_interleave(VARIANTS).view(-1, 1, 1)
    distance = render._distance(shapes, places.view(1, 1, -1), places.view(1, -1, 1), torch.ones_like(variants),
                                variants)
    return distance[None, None]


def looked_up(shape, x, y, radius, variant):
    """`exact` to within 0.1 pixels where a thing begins, from a table: a distance grows as the radius does. What lies
    beyond the table is about as far off as its border and then as the border is from there."""
    unit = REACH * radius.clamp(min=1e-3)
    layer = shape * VARIANTS + (variant + 1) * ((VARIANTS - 1) / 2)
    layers = len(world.SHAPES) * VARIANTS
    layer = (layer * (2 / (layers - 1)) - 1).expand_as(x)
    places = torch.stack([x / unit, y / unit, layer], dim=-1)[None]
    inside = F.grid_sample(table(x.device), places, padding_mode="border", align_corners=True)[0, 0] * radius
    return inside + torch.hypot((x.abs() - unit).clamp(min=0), (y.abs() - unit).clamp(min=0))


def things(rows, numbers, count, width, height, morphs, outline):
    """Of each thing [n * t, 3, 1, 1] its colour, [n * t, height, width] the distances of pixels from its outline and
    [n * t, 1, 1] its radius: 0 where it is not to be seen. Parameters: see `frames`."""
    t = numbers.shape[1]
    device = rows.device
    y = (torch.arange(height, device=device, dtype=torch.float32) + 0.5).view(1, -1, 1)
    x = (torch.arange(width, device=device, dtype=torch.float32) + 0.5).view(1, 1, -1)
    done = (numbers / (count - 1)).reshape(-1)
    rows = rows.repeat_interleave(t, dim=0)
    flat = numbers.reshape(-1)
    for index in range(THINGS):
        first = 3 + index * PARAMETERS
        shape, _, _, _, x0, y0, x1, y1, r0, r1, turn, seen, gone, variant, other, tilt = \
            rows[:, first:first + PARAMETERS].unbind(1)
        radius = torch.where((flat >= seen) & (flat < gone), r0 + (r1 - r0) * done, torch.zeros_like(r0))
        angle = tilt + turn * done

        def wide(values):
            return values.view(-1, 1, 1)

        dx, dy = x - wide(x0 + (x1 - x0) * done), y - wide(y0 + (y1 - y0) * done)
        cos, sin = wide(angle.cos()), wide(angle.sin())
        u, v = dx * cos + dy * sin, dy * cos - dx * sin
        distance = outline(wide(shape), u, v, wide(radius), wide(variant))
        if morphs:
            distance = torch.lerp(distance, outline(wide(other), u, v, wide(radius), wide(variant)), 0.5)
        yield rows[:, first + 1:first + 4, None, None], distance, wide(radius)


def covered(distance, radius):
    """How much of each pixel a thing covers, 0 to 1."""
    return torch.where(radius > 0, (0.5 - distance).clamp(0, 1), 0.0)


def frames(rows, numbers, count, width, height, weighted=False, morphs=True, outline=exact):
    """float32 [n, t, 3, height, width] in 0..255 of packed clips; `numbers` [n, t]: which frames; `count` [n, 1]:
    how many the whole clip has. `weighted`: (frames, [n, t, 1, height, width]), how much an error at a pixel is to
    count: each thing as much as the other and more than all else, however small it is. `morphs`: some things may be
    half of one shape and half of another; without them a second outline need not be drawn. `outline`: `exact` or, much
    faster on a GPU, `looked_up`."""
    n, t = numbers.shape
    picture = rows[:, :3].repeat_interleave(t, dim=0)[..., None, None].expand(-1, 3, height, width)
    weights = torch.full((n, t, height, width), UNNOTICED, device=rows.device) if weighted else None
    for colour, distance, radius in things(rows, numbers, count, width, height, morphs, outline):
        picture = picture + covered(distance, radius).unsqueeze(1) * (colour - picture)
        if weighted:
            near = ((distance < NEAR) & (radius > 0)).float().view(n, t, height, width)
            weights = weights + near * (NOTICED / near.mean(dim=(1, 2, 3), keepdim=True).clamp(min=LEAST_SHARE))
    picture = picture.view(n, t, 3, height, width)
    return (picture, weights.unsqueeze(2)) if weighted else picture


def owners(rows, numbers, count, width, height, morphs=True, outline=exact):
    """uint8 [n, rows]: which thing, 1 or 2, the pixels and frames of a latent row show most of; 0: next to none."""
    n, t = numbers.shape
    shares = []
    for _, distance, radius in things(rows, numbers, count, width, height, morphs, outline):
        share = F.avg_pool2d(covered(distance, radius).view(n, t, height, width),
                             wan_autoencoder.SIDE)
        later = share[:, 1:].unflatten(1, (-1, wan_autoencoder.TIME)).mean(dim=2)  # the first frame stands alone
        shares.append(torch.cat([share[:, :1], later], dim=1).flatten(1))
    most, which = torch.stack(shares).max(dim=0)
    return torch.where(most > LEAST_OWNED, which + 1, 0).to(torch.uint8)


def film(clip):
    """uint8 [frames, height, width, 3] of one clip, on the CPU."""
    numbers = torch.arange(clip.frames, dtype=torch.float32)[None]
    drawn = frames(pack([clip]), numbers, torch.tensor([[float(clip.frames)]]), clip.width, clip.height)[0]
    return render.to_bytes(drawn).permute(0, 2, 3, 1).contiguous()
