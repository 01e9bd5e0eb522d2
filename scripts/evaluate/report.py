"""Tables, results.json and a contact sheet of what an exam gave."""
import collections
import dataclasses
import json
import textwrap

import cv2
import exam
import numpy as np
from judge import drawing

REQUIRED = {exam.ONE: 95, exam.TWO: 90, exam.EDITS: 85, exam.ANSWERS: 95}  # per cent
CLEARLY = 5  # per cent points that missing guidance must cost
ALL = "all"
LEAST_OF_A_KIND = 5  # of items, to be listed among the worst


@dataclasses.dataclass(frozen=True)
class Verdict:
    what: str
    found: str
    required: str
    reached: bool


def percent(right, total):
    return 100 * right / total if total else 0.0


def figures(marked):
    """{task: {kind: [right, total]}}, tasks in the order of the exam; kind "all": of all kinds."""
    counted = {}
    for item, _, complaints in marked:
        kinds = counted.setdefault(item.task, {ALL: [0, 0]})
        for kind in (ALL, item.kind):
            figure = kinds.setdefault(kind, [0, 0])
            figure[0] += not complaints
            figure[1] += 1
    return counted


def pooled(counted, tasks):
    return [sum(counted[task][ALL][i] for task in tasks) for i in (0, 1)]


def verdicts(counted, required=REQUIRED):
    """What is required of the tasks that were run; `required`: {task: per cent}."""
    found = []
    for task, least in required.items():
        if task in counted:
            reached = percent(*counted[task][ALL])
            found.append(Verdict(task, f"{reached:.1f} %", f">= {least} %", reached >= least))
    pairs = [(task, task + exam.UNGUIDED) for task in (exam.ONE, exam.TWO)
             if task + exam.UNGUIDED in counted]
    if pairs:
        guided, unguided = (percent(*pooled(counted, tasks)) for tasks in zip(*pairs))
        found.append(Verdict("without guidance", f"{unguided:.1f} %",
                             f"{CLEARLY} points below {guided:.1f} %", unguided <= guided - CLEARLY))
    return found


def worst(marked, most=8):
    """[(share, task, tag, right, total)] of what goes wrong most, in guided tasks."""
    counted = collections.defaultdict(lambda: [0, 0])
    for item, _, complaints in marked:
        if exam.UNGUIDED not in item.task:
            for tag in item.tags:
                counted[item.task, tag][0] += not complaints
                counted[item.task, tag][1] += 1
    rows = [(percent(*figure), task, tag, *figure) for (task, tag), figure in counted.items()
            if figure[1] >= LEAST_OF_A_KIND and figure[0] < figure[1]]
    return sorted(rows)[:most]


def table(marked, counted, found):
    lines = [f"{'':34} right total      %"]
    for task, kinds in counted.items():
        for kind, (right, total) in sorted(kinds.items(), key=lambda entry: (entry[0] != ALL, entry[0])):
            name = task if kind == ALL else f"  {kind}"
            lines.append(f"{name:34} {right:5} {total:5} {percent(right, total):6.1f}")
    rows = worst(marked)
    if rows:
        lines += ["", "worst:"]
        lines += [f"  {f'{task}, {tag}':44} {right:3} of {total:3}" for _, task, tag, right, total in rows]
    reasons = collections.Counter(reason for _, _, complaints in marked for reason in set(complaints))
    lines += ["", "most frequent complaints:"] if reasons else []
    lines += [f"  {count:4} x {textwrap.shorten(reason, 100)}" for reason, count in reasons.most_common(8)]
    lines += ["", "required:"]
    lines += [f"  {v.what:32} {v.found:>8} {v.required:>23}  {'reached' if v.reached else 'MISSED'}" for v in found]
    return "\n".join(lines)


def write_results(path, command, seed, marked, counted, found):
    results = {
        "command": command,
        "seed": seed,
        "tasks": {task: {kind: {"right": right, "total": total, "percent": percent(right, total)}
                         for kind, (right, total) in kinds.items()} for task, kinds in counted.items()},
        "required": [dataclasses.asdict(verdict) for verdict in found],
        "items": [{
            "id": item.id, "task": item.task, "kind": item.kind, "prompt": item.request["prompt"],
            "expected": item.expected if isinstance(item.expected, str) else dataclasses.asdict(item.expected),
            "right": not complaints, "complaints": complaints, "output": item.output,
            **{key: record[key] for key in ("text", "plan", "seconds", "seed") if record and key in record},
        } for item, record, complaints in marked],
    }
    path.write_text(json.dumps(results, indent=1), encoding="utf-8")


# ---------------------------------------------------------------------------------------------
# The contact sheet

SIDE, TEXT, COLUMNS = 192, 74, 6  # pixels of a picture's and a text's part of a cell; cells
MOST_CELLS = 60


def shrink(picture):
    """In a white square of SIDE pixels."""
    square = np.full((SIDE, SIDE, 3), 255, np.uint8)
    if picture is not None:
        factor = SIDE / max(picture.shape[:2])
        small = cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)[:SIDE, :SIDE]
        square[:small.shape[0], :small.shape[1]] = small
    return square


def write_text(cell, top, text, colour, lines):
    """At most so many lines; returns where the next one would begin."""
    plain = text.encode("ascii", "replace").decode()
    for line in textwrap.wrap(plain, cell.shape[1] * 2 // 13)[:lines]:
        cv2.putText(cell, line, (2, top + 10), cv2.FONT_HERSHEY_SIMPLEX, 0.33, colour, 1, cv2.LINE_AA)
        top += 11
    return top


def draw_cell(item, complaints, folder):
    """What was read (or nothing), what came out, the prompt, the first complaints."""
    before = drawing.draw(item.scene) if item.scene is not None else None
    after = None if isinstance(item.expected, str) else exam.read_picture(folder / "run" / item.output)
    shown = [picture for picture in (before, after) if picture is not None] or [None]
    part = np.hstack([shrink(picture) for picture in shown])
    cell = np.full((SIDE + TEXT, part.shape[1], 3), 255, np.uint8)
    cell[:SIDE] = part
    write_text(cell, SIDE, item.request["prompt"], (0, 0, 0), 3)
    write_text(cell, SIDE + 34, "; ".join(complaints), (190, 30, 30), 3)
    return cell


def choose(failures):
    """At most MOST_CELLS, of all tasks alike."""
    by_task = collections.defaultdict(list)
    for entry in failures:
        by_task[entry[0].task].append(entry)
    turn = sorted(((index, number, entry) for number, entries in enumerate(by_task.values())
                   for index, entry in enumerate(entries)), key=lambda e: e[:2])[:MOST_CELLS]
    return [entry for _, _, entry in sorted(turn, key=lambda e: (e[1], e[0]))]


def write_failures(path, failures, folder):
    """A PNG of failures; a former one is removed where there is none."""
    path.unlink(missing_ok=True)
    rows, row = [], []
    for item, _, complaints in choose(failures):
        cell = draw_cell(item, complaints, folder)
        if row and sum(c.shape[1] for c in row) + cell.shape[1] > COLUMNS * SIDE:
            rows.append(row)
            row = []
        row.append(cell)
    if not row:
        return
    sheet = np.full(((SIDE + TEXT) * (len(rows) + 1), COLUMNS * SIDE, 3), 255, np.uint8)
    for number, cells in enumerate(rows + [row]):
        filled = np.hstack(cells)
        top = number * (SIDE + TEXT)
        sheet[top:top + SIDE + TEXT, :filled.shape[1]] = filled
    exam.write_picture(path, sheet)
