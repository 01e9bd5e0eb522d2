"""The clip demo measured: the binary makes, continues and edits clips and answers questions about them; a judge
without a model looks at the results.

Every request has a pair of colour and motion, or of shape and motion, that training never saw. Clips are judged by
classical tracking of the files as written (scripts/evaluate/clip_judge.py), answers by comparison of what they say.
Required are 90 % of the clips from text, 90 % of the continued pictures, 85 % of the edits, 95 % of the answers.

Without --make and --judge, both are done in outputs/clip_evaluation. DIR gets exam.json, inputs/, a list for each task
and run/ with what the binary wrote; then results.json (every prompt, verdict and complaint) and failures.png. Flags that
are not listed go to `diptych batch`: --cfg-scale 2, --cache-mode taylorseer, or --resume to go on with a run that was cut
short. Exit code 1: a required figure is missed.
"""
import argparse
import collections
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import textwrap

import cv2
import numpy as np

import clip_exam
import evaluate
import exam
import film as films
import report

CONFIG = evaluate.ROOT / "stage_configs" / "demo" / "clips.yaml"
COUNTS = ((clip_exam.T2V, "t2v", 200), (clip_exam.I2V, "i2v", 100), (clip_exam.EDITS, "edits", 100),
          (clip_exam.ANSWERS, "answers", 200))
SHOWN, CELL, MOST_ROWS = 9, 96, 40  # frames of a clip, pixels of a frame, clips of the sheet of failures


def parse():
    parser = argparse.ArgumentParser(prog="evaluate_clips", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=pathlib.Path, metavar="DIR", help="make the results only")
    parser.add_argument("--judge", type=pathlib.Path, metavar="DIR", help="judge only what is there")
    parser.add_argument("--program", default=evaluate.ROOT / "build" / "release" / "diptych", metavar="PATH")
    parser.add_argument("--config", default=CONFIG, metavar="FILE", help="stage config (default: the demo of clips)")
    parser.add_argument("--seed", type=int, default=1, help="of prompts, inputs and clips (1)")
    for task, name, count in COUNTS:
        parser.add_argument(f"--{name}", type=evaluate.how_many, default=count, metavar="N", help=f"{task} ({count})")
    arguments, passed_on = parser.parse_known_args()
    if arguments.make and arguments.judge:
        parser.error("--make and --judge: found both, expected one or none, which does both")
    if arguments.judge:
        if passed_on:
            parser.error(f"--judge: {passed_on[0]} is a flag of `diptych batch`, which does not run")
        if not (arguments.judge / "exam.json").is_file():
            parser.error(f"--judge: {arguments.judge}/exam.json is missing; --make {arguments.judge} writes it")
    elif not pathlib.Path(arguments.program).is_file():
        parser.error(f"--program: {arguments.program} is missing; scripts/quickstart builds it")
    return arguments, passed_on


def load(folder):
    """(items, commands) of what --make has done."""
    made = json.loads((folder / "exam.json").read_text(encoding="utf-8"))
    return clip_exam.make(made["seed"], made["counts"]), made["commands"]


def make(arguments, passed_on, folder):
    """One process for each task."""
    counts = {task: getattr(arguments, name) for task, name, _ in COUNTS}
    items = clip_exam.make(arguments.seed, counts)
    if not items:
        sys.exit("evaluate_clips: nothing to do")
    if (folder / "run").exists() and "--resume" not in passed_on:
        shutil.rmtree(folder / "run")
    folder.mkdir(parents=True, exist_ok=True)
    clip_exam.write_inputs(items, folder)
    commands = []
    for task, name in clip_exam.TASKS.items():
        requests = [{**item.request, "output": pathlib.Path(item.output).name} for item in items if item.task == task]
        if requests:
            listed = folder / f"{name}.jsonl"
            listed.write_text("".join(json.dumps(request) + "\n" for request in requests), encoding="utf-8")
            commands.append([str(word) for word in (
                arguments.program, "batch", listed, "--output-dir", folder / "run" / name, "--config",
                arguments.config, *passed_on)])
    (folder / "exam.json").write_text(json.dumps({"seed": arguments.seed, "counts": counts, "commands": commands},
                                                 indent=1), encoding="utf-8")
    for command in commands:
        print("$ " + shlex.join(command), file=sys.stderr, flush=True)
        status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        if status not in (0, 4):  # 4: some items failed, which counts as wrong
            sys.exit(f"evaluate_clips: diptych batch ended with exit code {status}")


def mark_all(items, folder):
    """[(item, record, complaints)]"""
    records = {}
    for manifest in sorted(folder.glob("run/*/manifest.jsonl")):
        with open(manifest, encoding="utf-8") as lines:
            records |= {record["id"]: record for record in map(json.loads, lines)}
    marked = []
    for number, item in enumerate(items, 1):
        record = records.get(item.id)
        marked.append((item, record, clip_exam.mark(item, record, folder / "run")))
        if number % 100 == 0 or number == len(items):
            print(f"judged {number} of {len(items)}", file=sys.stderr, flush=True)
    return marked


def kinds_of_failure(marked):
    """{task: {kind of complaint: items}}: what was wrong, however much of it."""
    counted = collections.defaultdict(collections.Counter)
    for item, _, complaints in marked:
        kinds = {complaint.partition(":")[0] for complaint in complaints}
        counted[item.task].update(kinds)
        if len(kinds) == 1:
            counted[item.task][f"nothing but {kinds.pop()}"] += 1
    return {task: dict(kinds.most_common()) for task, kinds in counted.items() if kinds}


def draw_row(item, complaints, folder):
    """Frames of what was read, if any, and of what was made, its request, and what is wrong with it."""
    shown = [films.draw(item.clip)] if item.clip is not None else []
    made = None if item.task == clip_exam.ANSWERS else films.read(folder / "run" / item.output)
    shown += [made] if made is not None else []
    rows = []
    for film in shown or [np.full((1, CELL, CELL, 3), 255, np.uint8)]:
        picked = film[np.linspace(0, len(film) - 1, SHOWN).round().astype(int)]
        rows.append(np.hstack([fit(picture) for picture in picked]))
    words = np.full((36, SHOWN * CELL, 3), 255, np.uint8)
    report.write_text(words, 0, f"{item.id}: {item.request['prompt']}", (0, 0, 0), 1)
    report.write_text(words, 12, textwrap.shorten("; ".join(complaints), 260), (190, 30, 30), 2)
    return np.vstack([words, *rows])


def fit(picture):
    square = np.full((CELL, CELL, 3), 255, np.uint8)
    factor = (CELL - 4) / max(picture.shape[:2])
    small = cv2.resize(np.ascontiguousarray(picture), None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    square[2:2 + small.shape[0], 2:2 + small.shape[1]] = small
    return square


def write_failures(path, failures, folder):
    """A PNG of failures of all tasks; a former one is removed where there is none."""
    path.unlink(missing_ok=True)
    by_task = collections.defaultdict(list)
    for item, _, complaints in failures:
        by_task[item.task].append((item, complaints))
    chosen = [entry for entries in by_task.values() for entry in entries[:max(1, MOST_ROWS // len(by_task))]]
    if chosen:
        exam.write_picture(path, np.vstack([draw_row(item, complaints, folder) for item, complaints in chosen]))


def judge(folder):
    items, commands = load(folder)
    marked = mark_all(items, folder)
    counted = report.figures(marked)
    verdicts = report.verdicts(counted, clip_exam.REQUIRED)
    failed = kinds_of_failure(marked)
    print(report.table(marked, counted, verdicts))
    print("\nfailures by kind:")
    for task, kinds in failed.items():
        print(f"  {task}: " + ", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    report.write_results(folder / "results.json", commands, json.loads((folder / "exam.json").read_text())["seed"],
                         marked, counted, verdicts)
    failures = [entry for entry in marked if entry[2]]
    write_failures(folder / "failures.png", failures, folder)
    print(f"{folder / 'results.json'}; {len(failures)} failures, some in {folder / 'failures.png'}")
    return 0 if all(verdict.reached for verdict in verdicts) else 1


def main():
    arguments, passed_on = parse()
    folder = arguments.make or arguments.judge or evaluate.ROOT / "outputs" / "clip_evaluation"
    if not arguments.judge:
        make(arguments, passed_on, folder)
    return 0 if arguments.make else judge(folder)


if __name__ == "__main__":
    sys.exit(main())
