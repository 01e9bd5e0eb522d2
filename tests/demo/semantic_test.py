#!/usr/bin/env python3
"""The demo paints, edits and answers what it is asked: semantic_test.py DIPTYCH [--write-gate]

A few fixed prompts go through the whole binary, and the judge looks at the pictures: a break anywhere
in the pipeline shows as a wrong picture. One picture of a fixed seed is held by a pixel gate as well, as
users would write one: `diptych check` with the probes of gate.yaml.

--write-gate paints that picture anew and writes gate.yaml from it, which is to be done once whenever the
demo's checkpoint or sampling defaults change. A picture that the judge refuses makes no gate.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support  # noqa: F401  first: it finds the modules below
import drawing
import exam
import judge
from edits import Edit
from world import Group, Scene, Spec, Thing, swap

GATE = pathlib.Path(__file__).resolve().parent / "gate.yaml"
TOLERANCE = 12  # levels: other processors round otherwise, and a sampler carries that along


def asked(relation, background, *groups):
    return Spec(tuple(Group(*group) for group in groups), relation, background)


GATED = "a yellow star above a blue ring on a black background"
PROMPTS = {
    GATED: asked("above", "black", (1, None, "yellow", "star"), (1, None, "blue", "ring")),
    "a large red circle left of a small blue square on a sand background": asked(
        "left of", "sand", (1, "large", "red", "circle"), (1, "small", "blue", "square")),
    "a large green heart on a white background": asked(None, "white", (1, "large", "green", "heart")),
    "three small red stars on a white background": asked(None, "white", (3, "small", "red", "star")),
    "a small cyan diamond on a gray background": asked(None, "gray", (1, "small", "cyan", "diamond")),
    "a white cross inside a blue circle on a sky background": asked(
        "inside", "sky", (1, None, "white", "cross"), (1, None, "blue", "circle")),
    "TWO BLUE SQUARES ON A SAND BACKGROUND": asked(None, "sand", (2, None, "blue", "square")),
}

BEFORE = Scene(192, 192, "white", (Thing("circle", "red", "large", 62, 90, 36),
                                   Thing("star", "blue", "small", 146, 112, 20)))
ASKED = "make the circle green"
EDIT = Edit("recolour", BEFORE, swap(BEFORE, 0, Thing("circle", "green", "large", 62, 90, 36)), 0)
QUESTIONS = {"what color is the star?": "blue", "how many objects are there?": "two"}
CHAT = {"which backgrounds do you know?": "white, gray, black, sand and sky."}


def requests():
    """The batch list; pictures are painted one by one, as `generate` does."""
    items = [{"prompt": prompt, "seed": 42, "output": f"{number}.png"}
             for number, prompt in enumerate(PROMPTS)]
    items.append({"image": "before.png", "prompt": ASKED, "seed": 42, "output": "edited.png"})
    items += [{"task": "understand", "image": "before.png", "prompt": question, "max_tokens": 32,
               "output": f"answer{number}.txt"} for number, question in enumerate(QUESTIONS)]
    items += [{"task": "chat", "prompt": said, "max_tokens": 32, "output": f"chat{number}.txt"}
              for number, said in enumerate(CHAT)]
    return items


def run_batch(binary, folder, items):
    """The folder of the results; every item must have been done."""
    exam.write_picture(folder / "before.png", drawing.draw(BEFORE))
    (folder / "list.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    subprocess.run([binary, "batch", folder / "list.jsonl", "--output-dir", folder / "out"], check=True,
                   stdout=subprocess.DEVNULL)
    return folder / "out"


class Semantics(unittest.TestCase):
    binary = None

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="diptych_semantics_")
        cls.addClassCleanup(folder.cleanup)
        cls.out = run_batch(cls.binary, pathlib.Path(folder.name), requests())

    def test_pictures_show_the_prompt(self):
        for number, (prompt, spec) in enumerate(PROMPTS.items()):
            with self.subTest(prompt):
                self.assertEqual(judge.judge_spec(exam.read_picture(self.out / f"{number}.png"), spec), [])

    def test_the_edit_is_done_and_nothing_else(self):
        self.assertEqual(judge.judge_edit(exam.read_picture(self.out / "edited.png"), EDIT), [])

    def test_answers_are_right(self):
        for name, asked_and_answered in (("answer", QUESTIONS), ("chat", CHAT)):
            for number, (question, answer) in enumerate(asked_and_answered.items()):
                with self.subTest(question):
                    text = (self.out / f"{name}{number}.txt").read_text(errors="replace")
                    self.assertEqual(text.strip(), answer)

    def test_answers_end_by_themselves(self):
        records = [json.loads(line) for line in (self.out / "manifest.jsonl").read_text().splitlines()]
        self.assertEqual([record["finish_reason"] for record in records if "text" in record],
                         ["stop"] * (len(QUESTIONS) + len(CHAT)))

    def test_the_pixel_gate_holds(self):
        checked = subprocess.run([self.binary, "check", self.out / "0.png", "--probes", GATE], check=False,
                                 text=True, capture_output=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


def probes_of(picture):
    """[(x, y)] on flat colour: the background's corners, the star, the ring's wall and its hole."""
    height, width = picture.shape[:2]
    star, ring = judge.see(picture).things  # the upper one is the first
    corners = [(4, 4), (width - 5, 4), (4, height - 5), (width - 5, height - 5)]
    wall = [(ring.x + 0.8 * ring.r * x, ring.y + 0.8 * ring.r * y)
            for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1))]
    return [(int(x), int(y)) for x, y in corners + [(star.x, star.y), (ring.x, ring.y)] + wall]


def write_gate(binary):
    with tempfile.TemporaryDirectory(prefix="diptych_gate_") as folder:
        out = run_batch(binary, pathlib.Path(folder), requests()[:1])
        picture = exam.read_picture(out / "0.png")
    complaints = judge.judge_spec(picture, PROMPTS[GATED])
    if complaints:
        sys.exit(f"no gate is made of a wrong picture: {'; '.join(complaints)}")
    lines = [f'# `diptych generate -p "{GATED}" -s 42` of the demo; written by',
             "# tests/demo/semantic_test.py build/release/diptych --write-gate",
             f"tolerance: {TOLERANCE}", "probes:"]
    lines += [f"  - {{x: {x}, y: {y}, rgb: {picture[y, x].tolist()}}}" for x, y in probes_of(picture)]
    GATE.write_text("\n".join(lines) + "\n")
    print(f"wrote {GATE}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["--write-gate"]):
        sys.exit(__doc__)
    Semantics.binary = sys.argv[1]
    if sys.argv[2:]:
        write_gate(Semantics.binary)
    else:
        unittest.main(argv=sys.argv[:1])
