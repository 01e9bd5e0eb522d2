#!/usr/bin/env python3
"""scripts/evaluate_demo counts what is right and what is not, whatever paints.

In place of the binary stands a script that copies the results that the test has made.
"""
import contextlib
import io
import json
import pathlib
import random
import shutil
import sys
import tempfile
import unittest
from unittest import mock

import support  # noqa: F401  first: it finds the modules below
import drawing
import edits
import evaluate
import exam
import world

COUNTS = {"one": 6, "two": 6, "counts": 2, "plans": 2, "edits": 8, "answers": 9}
STAND_IN = """#!{python}
import json, pathlib, shutil, sys
assert sys.argv[1] == "batch", sys.argv
items = [json.loads(line) for line in open(sys.argv[2])]
out = pathlib.Path(sys.argv[sys.argv.index("--output-dir") + 1])
out.mkdir(parents=True)
with open(out / "manifest.jsonl", "w") as manifest:
    for item in items:
        made = pathlib.Path({made!r}, item["output"])
        record = {{"id": item["id"], "status": "ok" if made.exists() else "failed", "error": "not made"}}
        if made.exists():
            (out / item["output"]).parent.mkdir(exist_ok=True)
            shutil.copy(made, out / item["output"])
            record.update({{"text": made.read_text()}} if made.suffix == ".txt" else {{}})
        manifest.write(json.dumps(record) + "\\n")
sys.exit(4)
"""


def right_result(item):
    """The text or the picture that is right for an item."""
    if isinstance(item.expected, str):
        return item.expected
    if isinstance(item.expected, edits.Edit):
        return drawing.draw(item.expected.after)
    scene = None
    rng = random.Random(item.id)
    while scene is None:
        scene = world.realise(rng, item.expected, *item.size)
    return drawing.draw(scene)


class Evaluation(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="diptych_evaluation_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.made = self.folder / "made"
        self.binary = self.folder / "stand-in"
        self.binary.write_text(STAND_IN.format(python=sys.executable, made=str(self.made)))
        self.binary.chmod(0o755)

    def flags(self, *more):
        counts = [word for name, count in COUNTS.items() for word in (f"--{name}", str(count))]
        return ["evaluate_demo", "--diptych", str(self.binary), "--seed", "5", *counts,
                "--output-dir", str(self.folder / "out"), *more]

    def items(self):
        with mock.patch.object(sys, "argv", self.flags()):
            return evaluate.make_exam(evaluate.parse()[0])

    def make(self, item, result):
        path = self.made / item.output
        if isinstance(result, str):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(result)
        else:
            exam.write_picture(path, result)

    def run_evaluation(self, *more):
        """(exit code, results.json)"""
        silence = io.StringIO()
        with mock.patch.object(sys, "argv", self.flags(*more)), contextlib.redirect_stdout(silence), \
                contextlib.redirect_stderr(silence):
            status = evaluate.main()
        return status, json.loads((self.folder / "out" / "results.json").read_text())

    def test_all_right_but_without_guidance(self):
        for item in self.items():
            if exam.UNGUIDED not in item.task:
                self.make(item, right_result(item))
        status, results = self.run_evaluation()
        self.assertEqual(status, 0)
        for task, kinds in results["tasks"].items():
            self.assertEqual(kinds["all"]["percent"], 0 if exam.UNGUIDED in task else 100, task)
        self.assertEqual(len(results["items"]), 6 * 4 + 2 + 2 * 2 + 8 + 2 + 9)
        self.assertTrue((self.folder / "out" / "failures.png").exists())

    def test_results_of_other_items_are_wrong(self):
        items = self.items()
        for item, other in zip(items, items[1:] + items[:1]):
            if item.expected != other.expected:
                self.make(item, right_result(other) if item.output[-3:] == other.output[-3:] else "no")
        status, results = self.run_evaluation()
        self.assertEqual(status, 1)
        for entry in results["items"]:
            self.assertTrue(entry["complaints"] and not entry["right"], entry)
        self.assertFalse(any(verdict["reached"] for verdict in results["required"]))

    def test_prompts_are_held_out_and_the_same_each_time(self):
        items = self.items()
        self.assertEqual(items, self.items())
        for item in items:
            if item.task == exam.ONE:
                group = item.expected.groups[0]
                self.assertTrue(world.is_held_out_single(group.shape, group.colour, group.size,
                                                         item.expected.background))
            elif isinstance(item.expected, world.Spec) and exam.ONE not in item.task:
                self.assertTrue(any(world.is_held_out_pair(g.shape, g.colour) for g in item.expected.groups))
        again = {item.id: item.request for item in items}
        for item in items:
            if exam.UNGUIDED in item.task:
                guided = again[item.id.replace("-no-guidance", "")]
                self.assertEqual(guided["prompt"], item.request["prompt"])
                self.assertEqual(guided["seed"], item.request["seed"])
                self.assertEqual(item.request["cfg_scale"], 1.0)

    def test_fewer_without_guidance(self):
        with mock.patch.object(sys, "argv", self.flags("--no-guidance", "2")):
            items = evaluate.make_exam(evaluate.parse()[0])
        self.assertEqual(sum(exam.UNGUIDED in item.task for item in items), 4)


if __name__ == "__main__":
    unittest.main()
