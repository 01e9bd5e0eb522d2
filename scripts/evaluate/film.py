"""Clips as files, and the frames of clips of the world.

A clip is uint8 [frames, height, width, 3], red first. Drawn frames are those of train_demo/clip_render.py, within
the rounding of an edge, without torch.
"""
import pathlib

import cv2
import numpy as np

import drawing
from drawing import world

RATE = 12  # frames a second of the world's clips


def draw(clip):
    """The frames of a clips.Clip."""
    frames = np.empty((clip.frames, clip.height, clip.width, 3), np.float32)
    frames[:] = world.BACKGROUNDS[clip.background]
    for index, picture in enumerate(frames):
        done = index / (clip.frames - 1)
        for thing in clip.things:
            if not thing.seen[0] <= index < thing.seen[1]:
                continue
            drawing.paint(picture, thing.shape, thing.variant, world.COLOURS[thing.colour], *place(thing, done),
                          thing.turn * done)
    return np.clip(np.round(frames), 0, 255).astype(np.uint8)


def place(thing, done):
    """x, y and radius of a clips.Moving when so much of the clip is over."""
    return tuple(a + (b - a) * done for a, b in ((thing.start[0], thing.end[0]), (thing.start[1], thing.end[1]),
                                                 thing.radii))


def write(path, film, rate=RATE):
    """MPEG-4 video, which OpenCV writes without any other library."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = film.shape[1:3]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), rate, (width, height))
    if not writer.isOpened():
        raise OSError(f"{path}: cannot be written")
    for picture in film:
        writer.write(np.ascontiguousarray(picture[..., ::-1]))
    writer.release()


def read(path):
    """The frames of a video file, or of a folder of PNG files; None where there is no such clip."""
    path = pathlib.Path(path)
    if path.is_dir():
        pictures = [cv2.imread(str(file), cv2.IMREAD_COLOR) for file in sorted(path.glob("*.png"))]
    elif path.is_file():
        pictures = list(decoded(path))
    else:
        return None
    if not pictures or any(p is None or p.shape != pictures[0].shape for p in pictures):
        return None
    return np.stack(pictures)[..., ::-1]


def decoded(path):
    video = cv2.VideoCapture(str(path))
    while True:
        found, picture = video.read()
        if not found:
            return
        yield picture
