"""The contact sheet of the README: prompts, and what the binary makes of them."""
import json
import subprocess
import sys
import tempfile
import pathlib

import exam
import numpy as np
import report

COLUMNS, MARGIN = 5, 8
PROMPTS = (
    "a yellow star above a blue ring on a black background",
    "a large red circle left of a small blue square on a sand background",
    "three small purple hearts on a white background",
    "a white cross inside a large green circle on a sky background",
    "a large orange diamond on a gray background",
    "a pink heart right of a cyan triangle on a black background",
    "two red stars above a large cyan square on a white background",
    "a small black ring below a large pink circle on a sky background",
)
FOLLOWING = (  # what is read: the picture of a prompt, by its place; what is asked of it; for pictures, how
    (0, "make the star red", {}),
    (1, "remove the square", {}),
    (4, "add a green star on the right", {}),
    (5, "move the heart to the bottom", {}),
    (1, "describe the picture", {"task": "understand", "max_tokens": 64}),
    (6, "how many objects are there?", {"task": "understand", "max_tokens": 64}),
    (7, "what colour is the ring?", {"task": "understand", "max_tokens": 64}),
)


def run(command, items, folder, name):
    """[record of the manifest] of a batch; ends the program where an item failed."""
    listed = folder / f"{name}.jsonl"
    listed.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    status = subprocess.run([*command, listed, "--output-dir", folder / name], stdout=subprocess.DEVNULL,
                            check=False).returncode
    if status:
        sys.exit(f"evaluate_demo: diptych batch ended with exit code {status}")
    with open(folder / name / "manifest.jsonl", encoding="utf-8") as lines:
        return {record["id"]: record for record in map(json.loads, lines)}


def cell(picture, words):
    drawn = np.full((report.SIDE + report.TEXT, report.SIDE + MARGIN, 3), 255, np.uint8)
    drawn[:report.SIDE, :report.SIDE] = report.shrink(picture)
    top = report.SIDE + 2
    for text, colour in words:
        top = report.write_text(drawn, top, text, colour, 3)
    return drawn


def write(path, command):
    """`command`: diptych batch with its flags, without list and folder."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        run(command, [{"id": str(i), "prompt": prompt, "output": f"{i}.png"}
                      for i, prompt in enumerate(PROMPTS)], folder, "painted")
        asked = [{"id": str(i), "prompt": text, "image": f"painted/{of}.png",
                  "output": f"{i}.txt" if "task" in how else f"{i}.png", **how}
                 for i, (of, text, how) in enumerate(FOLLOWING)]
        records = run(command, asked, folder, "asked")
        cells = [cell(exam.read_picture(folder / "painted" / f"{i}.png"), [(prompt, (0, 0, 0))])
                 for i, prompt in enumerate(PROMPTS)]
        for i, (of, text, how) in enumerate(FOLLOWING):
            shown = folder / (f"painted/{of}.png" if "task" in how else f"asked/{i}.png")
            words = [("-> " + text, (40, 70, 160))]
            if "task" in how:
                words.append((records[str(i)]["text"].strip(), (0, 0, 0)))
            cells.append(cell(exam.read_picture(shown), words))
    blank = np.full_like(cells[0], 255)
    cells += [blank] * (-len(cells) % COLUMNS)
    rows = [np.hstack(cells[i:i + COLUMNS]) for i in range(0, len(cells), COLUMNS)]
    exam.write_picture(path, np.vstack(rows))
