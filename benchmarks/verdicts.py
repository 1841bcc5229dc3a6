"""Whether `compare` says the right thing first: benchmarks/VERDICTS.md, made by one command.

    python benchmarks/verdicts.py                                  # everything; writes VERDICTS.md beside this file
    python benchmarks/verdicts.py --only pairs fused               # these sets
    python benchmarks/verdicts.py --keep DIR                       # the dumps stay there; what it has is not made again
    python benchmarks/verdicts.py --keep DIR --case 'llama.*@L0'   # the cases that fit a pattern, with what was said
    python benchmarks/verdicts.py --python transformers4=PYTHON    # the interpreter of an environment of tox.ini

It needs torch and transformers, and for pairs of two releases a second interpreter with the older one: `make verdicts`
makes both. Environments are looked for under .tox and are named as in tox.ini; what needs one that is not there is left
out. A run of a part prints, and writes no file but with --report.

The exit status is 1 where a right pair is accused or a fault is called no divergence.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import measure
import verdicts
from verdicts import ENVIRONMENTS, ROOT, Work

from judging import ACCUSED, CANNOT, ELSEWHERE, NEAR, RIGHT, UNSEEN, Judged, judge  # isort: skip
from verdicts.sets import SETS, cases_of, make  # isort: skip

REPORT = ROOT / "benchmarks" / "VERDICTS.md"
BEFORE = Path(verdicts.__file__).parent / "before.json"
"""The counts of the rules before, by row of the table."""
TABLE = re.compile(r"^\| set .*?(?=^(?!\|)|\Z)", re.MULTILINE | re.DOTALL)
RIGHT_PAIRS, FAULTS = (RIGHT, CANNOT, ACCUSED), (RIGHT, NEAR, CANNOT, ELSEWHERE, UNSEEN)
HEAD = ["set", "precision", "level", "right pairs today", "before", "faults today", "before", "cause told"]
Counts = dict[str, list[list[int]]]


def row_of(each: Judged) -> str:
    return f"{each.case.set} | {each.case.precision} | {each.case.level}"


def counts(found: Iterable[Judged]) -> Counts:
    """For each row of the table: words of right pairs, words of faults, and how many of the known causes are told."""
    rows: dict[str, list[Judged]] = {}
    for each in found:
        rows.setdefault(row_of(each), []).append(each)
        rows.setdefault("all |  | ", []).append(each)
    rows["all |  | "] = rows.pop("all |  | ")
    result = {}
    for name, judged in rows.items():
        right = Counter(each.word for each in judged if not each.case.planted)
        faults = Counter(each.word for each in judged if each.case.planted)
        # Of a run that lacks a step, silence is no right answer, and accuses nobody.
        of_right = [right[RIGHT], right[CANNOT] + right[UNSEEN], right[ACCUSED]]
        known = [each for each in judged if each.case.cause and each.word == RIGHT]
        result[name] = [of_right, [faults[word] for word in FAULTS], [sum(each.is_told for each in known), len(known)]]
    return result


def table(today: Counts, before: Counts) -> str:
    """The counts as a Markdown table, from the first set to the last."""
    lines = []
    for name, (right, faults, told) in today.items():
        earlier = before.get(name, [[], [], []])
        cells = [_cell(each) for each in (right, earlier[0], faults, earlier[1])]
        lines.append([*name.split(" | "), *cells, f"{told[0]} of {told[1]}" if told[1] else ""])
    return measure.table(HEAD, lines)


def _cell(numbers: Sequence[int]) -> str:
    return " / ".join(map(str, numbers)) if sum(numbers) else ""


def interpreters(given: Sequence[str]) -> dict[str, str]:
    """The interpreters of the environments: those under .tox, the one this runs in, and those that are given."""
    found = {name: str(ROOT / ".tox" / name / "bin" / "python") for name in ENVIRONMENTS}
    found = {name: path for name, path in found.items() if Path(path).exists()}
    found["torch"] = sys.executable
    for each in given:
        name, _, path = each.partition("=")
        if name not in ENVIRONMENTS or not path:
            raise argparse.ArgumentTypeError(
                f"--python {each!r} is not NAME=PATH; the names are: {', '.join(ENVIRONMENTS)}"
            )
        found[name] = path
    return found


def options_from(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Whether `compare` says the right thing first.")
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS), metavar="SET", help=", ".join(SETS))
    parser.add_argument("--case", default="", metavar="PATTERN", help="judge the cases whose names it fits")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="of an environment")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the dumps there; what it has is not made again")
    default = f"write the table into it; a whole run writes {REPORT.name} without it"
    parser.add_argument("--report", type=Path, metavar="FILE", help=default)
    parser.add_argument("--save-as-before", action="store_true", help=f"write {BEFORE.name}")
    options = parser.parse_args(arguments)
    try:
        options.pythons = interpreters(options.python)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    is_whole = set(options.only) == set(SETS) and not options.case
    options.report = options.report or (REPORT if is_whole else None)
    return options


def judged(options: argparse.Namespace, dumps: Path) -> list[Judged]:
    """Make what is missing, and judge; what is not right is printed."""
    found = []
    for name in options.only:
        make(name, dumps, Work(dumps / name, options.pythons))
        for case in cases_of(dumps, name):
            if re.search(options.case, case.case):
                found.append(each := judge(case, dumps))
                if options.case or each.word != RIGHT:
                    print(f"{case.set} {case.case}: {each.word}: {each.said}", flush=True)
                if each.contradicts:
                    print(f"{case.set} {case.case}: the text and the values in JSON disagree", flush=True)
    return found


def main(arguments: Sequence[str]) -> int:
    options = options_from(arguments)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="verdicts_") as temporary:
        found = judged(options, (options.keep or Path(temporary)).resolve())
    today = counts(found)
    if options.save_as_before:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(numbers)}" for name, numbers in today.items())
        BEFORE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    text = table(today, json.loads(BEFORE.read_text(encoding="utf-8")))
    print(text)
    if options.report is not None:
        report = options.report.read_text(encoding="utf-8") if options.report.exists() else "| set \n"
        options.report.write_text(TABLE.sub(lambda _: f"{text}\n", report, count=1), encoding="utf-8")
    return int(any(each.word in (ACCUSED, UNSEEN) for each in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
