"""What the demo is asked: held-out prompts, pictures to edit, questions, each with what is right.

The same seed gives the same exam everywhere.
"""
import dataclasses
import pathlib
import random

import cv2
import judge
from judge import drawing, edits, world

ONE, TWO, COUNTS = "one object", "two objects", "counts"
THREE, EDITS, ANSWERS = "three objects", "edits", "answers"
PLANNED, UNPLANNED, UNGUIDED = ", with a plan", ", without a plan", ", no guidance"


@dataclasses.dataclass(frozen=True)
class Item:
    """One request of the batch list, and its right result."""
    id: str
    task: str
    kind: str
    request: dict  # of `diptych batch`; a picture to read is named below the exam's folder
    size: tuple[int, int]
    expected: world.Spec | edits.Edit | str
    scene: world.Scene | None = None  # of the picture to read
    tags: tuple[str, ...] = ()  # what is in it, to tell where it fails

    @property
    def output(self):
        return self.request["output"]


def tags_of(spec):
    said = []
    for group in spec.groups:
        said += [group.shape, group.colour] + ([group.size] if group.size else [])
    return tuple(sorted(set(said)) + ([f"on {spec.background}"] if spec.background else []))


def count_of(spec):
    return sum(group.count for group in spec.groups)


def is_about_one(spec):
    """With all that a held-out single is: then training has never seen such a picture."""
    return count_of(spec) == 1 and spec.groups[0].size and spec.background


ACCEPTS = {  # which specs a task takes, and their kind
    ONE: (is_about_one, lambda spec: spec.groups[0].shape),
    TWO: (lambda spec: len(spec.groups) == count_of(spec) == 2, lambda spec: spec.relation or "and"),
    COUNTS: (lambda spec: len(spec.groups) == 1 < count_of(spec),
             lambda spec: world.NUMBERS[count_of(spec)]),
    THREE: (lambda spec: len(spec.groups) > 1 and count_of(spec) == 3,
            lambda spec: f"{len(spec.groups)} groups" + (f", {spec.relation}" if spec.relation else "")),
}


class Exam:
    """Draws items; every task has its own random numbers, so that their counts do not mix."""

    def __init__(self, seed, sizes):
        self.seed, self.sizes = seed, sizes
        self.items = []

    def start(self, task):
        return random.Random(f"{self.seed} {task}")

    def held_out(self, rng, accept=lambda spec: True, layout="arranged"):
        """(spec, scene) of what training leaves out; `layout`: see world.py."""
        size = rng.choices(self.sizes, [3] + [1] * (len(self.sizes) - 1))[0]
        while True:
            spec, scene = world.sample_scene(rng, *size, held_out=True, layout=layout)
            if accept(spec):
                return spec, scene

    def add(self, task, kind, index, expected, request, scene, tags, reads=False):
        name = f"{task.replace(',', '').replace(' ', '-')}/{index:04d}"
        answer = isinstance(expected, str)
        request = {"id": name, **request, "output": name + (".txt" if answer else ".png")}
        if reads:
            request["image"] = f"inputs/{name}.png"
        else:
            request["size"] = f"{scene.width}x{scene.height}"
        if not answer:
            request["seed"] = 100000 * self.seed + index
        self.items.append(Item(name, task, kind, request, (scene.width, scene.height), expected,
                               scene if reads else None, tags))

    def add_pictures(self, task, count, name=None, **extra):
        """Under another name with extra keys of the requests, the same prompts and seeds once more."""
        rng = self.start(task)
        accept, kind = ACCEPTS[task]
        for index in range(count):
            spec, scene = self.held_out(rng, accept)
            request = {"prompt": world.caption(rng, spec), **extra}
            self.add(name or task, kind(spec), index, spec, request, scene, tags_of(spec))

    def add_edits(self, count, name=EDITS, **extra):
        """As `add_pictures`."""
        rng = self.start(EDITS)
        index = 0
        while index < count:
            _, scene = self.held_out(rng, layout=world.LAYOUTS[index % 3])
            edit = edits.sample_any(rng, scene, held_out=True)
            if edit is not None:
                tags = tags_of(world.spec_of(edit.before))
                request = {"prompt": edits.words(rng, edit), **extra}
                self.add(name, edit.kind, index, edit, request, edit.before, tags, True)
                index += 1

    def add_answers(self, count):
        rng = self.start(ANSWERS)
        for index in range(count):
            _, scene = self.held_out(rng, layout=world.LAYOUTS[index % 3])
            kind = rng.choices(tuple(world.QUESTION_KINDS), tuple(world.QUESTION_KINDS.values()))[0]
            asked = world.sample_question(rng, scene, kind)
            while asked is None:  # not of this scene
                _, scene = self.held_out(rng, layout=world.LAYOUTS[index % 3])
                asked = world.sample_question(rng, scene, kind)
            question, answer = asked
            self.add(ANSWERS, kind, index, answer, {"task": "understand", "prompt": question}, scene,
                     tags_of(world.spec_of(scene)), True)


def write_inputs(items, folder):
    """The pictures to read, as PNG, below `folder`."""
    for item in items:
        if item.scene is not None:
            write_picture(pathlib.Path(folder, item.request["image"]), drawing.draw(item.scene))


def write_picture(path, picture):
    """uint8 [height, width, 3], red first, in the format of the name; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not cv2.imwrite(str(path), picture[..., ::-1], [cv2.IMWRITE_WEBP_QUALITY, 80]):
        raise OSError(f"{path}: cannot be written")


def read_picture(path):
    """uint8 [height, width, 3], red first; None where there is no such picture."""
    if not path.is_file():
        return None
    picture = cv2.imread(str(path), cv2.IMREAD_COLOR)
    return None if picture is None else picture[..., ::-1]


def mark(item, record, folder):
    """Complaints about what became of an item, given its line of the manifest (or None)."""
    if record is None:
        return ["not done"]
    if record["status"] != "ok":
        return [record.get("error", record["status"])]
    if isinstance(item.expected, str):
        said = record["text"].strip()
        return [] if said == item.expected else [f'answered "{said}", expected "{item.expected}"']
    picture = read_picture(pathlib.Path(folder, item.output))
    if picture is None:
        return [f"{item.output}: no picture"]
    height, width = picture.shape[:2]
    if (width, height) != item.size:
        return [f"{width}x{height}, expected {item.size[0]}x{item.size[1]}"]
    if isinstance(item.expected, edits.Edit):
        return judge.judge_edit(picture, item.expected)
    return judge.judge_spec(picture, item.expected)
