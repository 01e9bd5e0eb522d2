"""What the clip demo is asked: held-out captions, pictures to continue, clips to edit, questions, each with what is
right.

Every item has a pair of colour and motion, or of shape and motion, that training leaves out. The same seed gives the
same exam everywhere.
"""
import dataclasses
import pathlib
import random

import clip_judge
import clips
import exam
import film as films
from drawing import world

T2V, I2V, EDITS, ANSWERS = "clips from text", "continued pictures", "edited clips", "answers about clips"
TASKS = {T2V: "t2v", I2V: "i2v", EDITS: "video_edit", ANSWERS: "x2t_video"}  # as `diptych batch` names them
REQUIRED = {T2V: 90, I2V: 90, EDITS: 85, ANSWERS: 95}  # per cent
SHAPES = (((128, 128), 25, 12), ((128, 128), 17, 3), ((128, 128), 33, 1), ((144, 112), 25, 1), ((112, 144), 25, 1),
          ((176, 96), 17, 1), ((96, 176), 17, 1))  # size, frames, how often
OWN_WORDS = 5  # every so many captions are worded as no caption of training is
OWN = ("{things} {ground}", "{ground} there is {things}", "show me {things} {ground}",
       "a film of {things} {ground}", "{ground} we see {things}")


@dataclasses.dataclass(frozen=True)
class Item:
    """One request of a batch list, and its right result."""
    id: str
    task: str
    kind: str
    request: dict
    expected: clips.ClipSpec | clips.Clip | clips.ClipEdit | str
    clip: clips.Clip | None = None  # whose first frame, or all frames, are read
    tags: tuple[str, ...] = ()  # what is in it, to tell where it fails

    @property
    def output(self):
        return self.request["output"]


def tags_of(things):
    return tuple(sorted({word for thing in things for word in (thing.colour, thing.shape, thing.motion)}))


def own_words(rng, spec):
    """A caption of known words in an order of its own."""
    nouns = [world.with_article(" ".join(filter(None, (t.size, t.colour, t.shape)))) for t in spec.things]
    things = " and ".join(f"{noun} that {thing.motion}" for noun, thing in zip(nouns, spec.things))
    ground = f"on a {spec.background} background" if spec.background else ""
    return rng.choice(OWN).format(things=things, ground=ground).strip()


class Exam:
    """Draws items; every task has its own random numbers, so that their counts do not mix."""

    def __init__(self, seed):
        self.seed = seed
        self.items = []

    def start(self, task):
        return random.Random(f"{self.seed} {task}")

    def shape(self, rng):
        size, frames, _ = rng.choices(SHAPES, [weight for _, _, weight in SHAPES])[0]
        return size, frames

    def add(self, task, kind, index, expected, request, clip, things):
        name = f"{TASKS[task]}/{index:04d}"
        request = {"id": name, "task": TASKS[task], **request,
                   "output": name + (".txt" if task == ANSWERS else ".mp4")}
        if task == I2V:
            request["image"] = f"inputs/{name}.png"
        elif clip is not None:
            request["video"] = f"inputs/{name}.mp4"
        if task != ANSWERS:
            request["seed"] = 100000 * self.seed + index
        self.items.append(Item(name, task, kind, request, expected, clip, tags_of(things)))

    def add_captions(self, count):
        rng = self.start(T2V)
        for index in range(count):
            spec = clips.sample_spec(rng, held_out=True)
            while not clips.is_seen(spec.things):
                spec = clips.sample_spec(rng, held_out=True)
            (width, height), frames = self.shape(rng)
            number = "one thing" if len(spec.things) == 1 else "two things"
            own = index % OWN_WORDS == OWN_WORDS - 1
            words = own_words(rng, spec) if own else clips.caption(rng, spec)
            self.add(T2V, number + (", own wording" if own else ""), index, spec,
                     {"prompt": words, "size": f"{width}x{height}", "video_frames": frames}, None, spec.things)

    def loose(self, rng, held_out=True, **how):
        """A clip with things anywhere."""
        size, frames = self.shape(rng)
        while True:
            clip = clips.sample_loose(rng, *size, frames, held_out, **how)[1]
            if clips.is_seen(clip.things):
                return clip

    def add_continuations(self, count):
        rng = self.start(I2V)
        motions = tuple(motion for motion in clips.MOTIONS if motion != clips.APPEARS)
        for index in range(count):
            clip = self.loose(rng, whole_way=True, motions=motions)
            self.add(I2V, "one thing" if len(clip.things) == 1 else "two things", index, clip,
                     {"prompt": clips.continuation(rng, clip), "video_frames": clip.frames}, clip, clip.things)

    def add_edits(self, count):
        """The clip may be one that training sees; the edited one is not."""
        rng = self.start(EDITS)
        index = 0
        while index < count:
            edit = clips.sample_edit(rng, self.loose(rng, held_out=rng.random() < 0.5), held_out=True)
            if edit is not None:
                kind = "background" if edit.index is None else \
                    "colour, one thing" if len(edit.before.things) == 1 else "colour, two things"
                self.add(EDITS, kind, index, edit, {"prompt": clips.edit_words(rng, edit)}, edit.before,
                         edit.after.things)
                index += 1

    def add_answers(self, count):
        rng = self.start(ANSWERS)
        kinds, weights = zip(*clips.QUESTION_KINDS.items())
        for index in range(count):
            asked = None
            kind = rng.choices(kinds, weights)[0]
            while asked is None:  # where a clip has no such question
                clip = self.loose(rng)
                asked = clips.sample_question(rng, clip, kind)
            question, answer = asked
            self.add(ANSWERS, kind, index, answer, {"prompt": question}, clip, clip.things)


def make(seed, counts):
    """[Item] of {task: how many}."""
    made = Exam(seed)
    for task, add in ((T2V, made.add_captions), (I2V, made.add_continuations), (EDITS, made.add_edits),
                      (ANSWERS, made.add_answers)):
        add(counts.get(task, 0))
    return made.items


def write_inputs(items, folder):
    """The pictures and clips to read, below `folder`."""
    for item in items:
        if item.clip is not None:
            drawn = films.draw(item.clip)
            if "image" in item.request:
                exam.write_picture(pathlib.Path(folder, item.request["image"]), drawn[0])
            else:
                films.write(pathlib.Path(folder, item.request["video"]), drawn)


def mark(item, record, folder):
    """Complaints about what became of an item, given its line of the manifest (or None)."""
    if record is None:
        return ["run: not done"]
    if record["status"] != "ok":
        return ["run: " + record.get("error", record["status"])]
    if item.task == ANSWERS:
        return clip_judge.judge_answer(record["text"], item.expected)
    film = films.read(pathlib.Path(folder, item.output))
    if film is None:
        return [f"run: {item.output} is no clip"]
    if item.task == T2V:
        size = f"{film.shape[2]}x{film.shape[1]}"
        if (size, len(film)) != (item.request["size"], item.request["video_frames"]):
            return [f"format: {size}, {len(film)} frames"]
        return clip_judge.judge_caption(film, item.expected)
    judge_it = clip_judge.judge_edited if item.task == EDITS else clip_judge.judge_continued
    return judge_it(film, item.expected)
