"""The demo measured: its binary paints, edits and answers; a judge without a model looks at the results.

Prompts are of scenes that training never saw. Pictures are judged by colours, outlines and places
(scripts/evaluate/judge.py), answers by exact comparison. Required are 95 % of the pictures of one object,
90 % of two, 85 % of the edits, 95 % of the answers, and that pictures without guidance are clearly worse.

DIR gets results.json (every prompt, verdict and complaint), failures.png, and run/ with what the binary
wrote. Flags that are not listed go to `diptych batch`: -m DIR, --device cuda, --steps 30, or --resume to
go on with a run that was cut short. Exit code 1: a required figure is missed.
"""
import argparse
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import exam
import report
import sheet

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COUNTS = (("one", 300, "pictures of one object"), ("two", 300, "of two objects"),
          ("counts", 60, "of several equal objects"), ("plans", 100, "of three with and without a plan, and edits without"),
          ("edits", 200, "edited pictures"), ("answers", 300, "answers about pictures"))


def how_many(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {text}, expected a number from 0")
    return int(text)


def parse():
    parser = argparse.ArgumentParser(prog="evaluate_demo", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--diptych", default=ROOT / "build" / "release" / "diptych", metavar="BINARY")
    parser.add_argument("--config", metavar="FILE", help="stage config (default: the demo)")
    parser.add_argument("--seed", type=int, default=1, help="of prompts, scenes and pictures (1)")
    for name, count, what in COUNTS:
        parser.add_argument(f"--{name}", type=how_many, default=count, metavar="N", help=f"{what} ({count})")
    parser.add_argument("--no-guidance", type=how_many, default=None, metavar="N", nargs="?",
                        help="of one and two objects each, how many again without guidance (all)")
    parser.add_argument("--sizes", default="192x192,256x192,192x256", metavar="WxH,...",
                        help="of pictures; the first is the most frequent")
    parser.add_argument("--output-dir", default=ROOT / "outputs" / "evaluation", metavar="DIR")
    parser.add_argument("--contact-sheet", type=pathlib.Path, metavar="FILE",
                        help="instead: paint the README's prompts and lay them out in one PNG or WebP")
    parser.add_argument("--batch-size", type=int, default=1, metavar="N", help="pictures in one forward (1)")
    arguments, passed_on = parser.parse_known_args()
    if not re.fullmatch(r"\d+x\d+(,\d+x\d+)*", arguments.sizes):
        parser.error(f"--sizes: found {arguments.sizes}, expected sizes like 192x192,256x192")
    arguments.sizes = [tuple(map(int, size.split("x"))) for size in arguments.sizes.split(",")]
    if not pathlib.Path(arguments.diptych).is_file():
        parser.error(f"--diptych: {arguments.diptych} is missing; scripts/quickstart builds it")
    return arguments, passed_on


def make_exam(arguments):
    made = exam.Exam(arguments.seed, arguments.sizes)
    for task, count in ((exam.ONE, arguments.one), (exam.TWO, arguments.two)):
        again = count if arguments.no_guidance is None else min(count, arguments.no_guidance)
        made.add_pictures(task, count)
        made.add_pictures(task, again, task + exam.UNGUIDED, cfg_scale=1.0)
    made.add_pictures(exam.COUNTS, arguments.counts)
    made.add_pictures(exam.THREE, arguments.plans)
    made.add_pictures(exam.THREE, arguments.plans, exam.THREE + exam.PLANNED, think=True)
    made.add_edits(arguments.edits)
    made.add_edits(min(arguments.edits, arguments.plans), exam.EDITS + exam.UNPLANNED, think=False)
    made.add_answers(arguments.answers)
    return made.items


def run(arguments, passed_on, items, folder):
    """The binary over all items. Returns the command and the manifest {id: record}."""
    output = folder / "run"
    if (output / "manifest.jsonl").exists() and "--resume" not in passed_on:
        shutil.rmtree(output)
    exam.write_inputs(items, folder)
    listed = folder / "list.jsonl"
    listed.write_text("".join(json.dumps(item.request) + "\n" for item in items), encoding="utf-8")
    command = [arguments.diptych, "batch", listed, "--output-dir", output,
               "--batch-size", arguments.batch_size, *passed_on]
    if arguments.config:
        command += ["--config", arguments.config]
    # Enough for all that is right; a flag that no item needs would be refused.
    given = any(word.split("=")[0] == "--max-tokens" for word in passed_on)
    if not given and any("task" in item.request for item in items):
        command += ["--max-tokens", 96]
    command = [str(word) for word in command]
    print("$ " + shlex.join(command), file=sys.stderr, flush=True)
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if status not in (0, 4):  # 4: some items failed, which counts as wrong
        sys.exit(f"evaluate_demo: diptych batch ended with exit code {status}")
    with open(output / "manifest.jsonl", encoding="utf-8") as lines:
        return command, {record["id"]: record for record in map(json.loads, lines)}


def mark_all(items, records, folder):
    """[(item, record, complaints)]"""
    marked = []
    for number, item in enumerate(items, 1):
        record = records.get(item.id)
        marked.append((item, record, exam.mark(item, record, folder / "run")))
        if number % 100 == 0 or number == len(items):
            print(f"judged {number} of {len(items)}", file=sys.stderr, flush=True)
    return marked


def main():
    arguments, passed_on = parse()
    if arguments.contact_sheet:
        config = ["--config", arguments.config] if arguments.config else []
        sheet.write(arguments.contact_sheet, [arguments.diptych, "batch", *config, *passed_on])
        return 0
    items = make_exam(arguments)
    if not items:
        sys.exit("evaluate_demo: nothing to do")
    folder = pathlib.Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    command, records = run(arguments, passed_on, items, folder)
    marked = mark_all(items, records, folder)

    figures = report.figures(marked)
    verdicts = report.verdicts(figures)
    print(report.table(marked, figures, verdicts))
    report.write_results(folder / "results.json", command, arguments.seed, marked, figures, verdicts)
    failures = [entry for entry in marked if entry[2]]
    report.write_failures(folder / "failures.png", failures, folder)
    print(f"{folder / 'results.json'}; {len(failures)} failures, some in {folder / 'failures.png'}")
    return 0 if all(verdict.reached for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
