"""The dumps of the pairs, what is true of each, and what `compare` says. It needs no package but the debugger's own."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from probe.common.errors import MsprobeException
from probe.compare.output.summary import TOO_LITTLE, summarise
from probe.compare.output.summary_text import UNTOLD
from probe.compare.runner import compare

RIGHT, GOLDEN = "right", "golden"
SILENT = "silent"
INDEX = "index.json"
CANNOT_TELL = UNTOLD


@dataclass(frozen=True)
class Run:
    """One run of a second program, of which there are dumps."""

    type: str
    fault: str
    """Name of the fault, or ``right``."""
    where: str
    """Pattern for the place of the fault; empty for a correct run."""
    moved: float
    """Largest difference of the output from the golden run's, relative to its largest value."""
    settings: list[str]
    """Levels and tasks, as ``mix:statistics``."""


class Row(NamedTuple):
    """One comparison."""

    name: str
    truth: str
    said: str
    right: bool
    unsure: bool = False
    """True if the answer is that it cannot be told, which claims nothing."""


def folder_of(out: Path, pair: str, type_: str, setting: str, run: str) -> Path:
    """The folder with the dump of one run."""
    return out / pair / type_ / setting.replace(":", "-") / run.replace(" ", "_")


def write(out: Path, pair: str, runs: list[Run]) -> None:
    """Write the index of a pair, which also says that its dumps are complete."""
    text = json.dumps([asdict(run) for run in runs], indent=1)
    (out / pair / INDEX).write_text(f"{text}\n", encoding="utf-8")


def read(out: Path, pair: str) -> list[Run]:
    """The runs of a pair."""
    return [Run(**each) for each in json.loads((out / pair / INDEX).read_text(encoding="utf-8"))]


def pairs_in(out: Path) -> list[str]:
    """Names of the pairs with complete dumps."""
    return sorted(path.parent.name for path in out.glob(f"*/{INDEX}"))


def judge(out: Path, pairs: Collection[str] = (), settings: Collection[str] = (), only: str = "") -> Iterator[Row]:
    """Compare the dumps in `out` and check each answer.

    Args:
        out: folder of the dumps.
        pairs: names of the pairs; all by default.
        settings: levels and tasks; all by default.
        only: pattern for the names of the rows.
    """
    for pair in pairs or pairs_in(out):
        for run in read(out, pair):
            for setting in run.settings:
                name = f"{pair} {run.type} {setting} {run.fault}"
                if (not settings or setting in settings) and re.search(only, name):
                    folder = folder_of(out, pair, run.type, setting, run.fault)
                    said = said_of(folder, folder.parent / GOLDEN)
                    if setting.startswith("L1:") and run.where:
                        said += _around(out, pair, run, said)
                    yield _row(name, run.where, said)


def _around(out: Path, pair: str, run: Run, said: str) -> str:
    """The modules around the calls that are named, from the dumps at mix; at L1 there are none."""
    found: list[str] = []
    for side, record in zip((run.fault, GOLDEN), said.split(" | "), strict=False):
        folder = folder_of(out, pair, run.type, "mix:statistics", side)
        tree = json.loads(next(folder.glob("step*/*/construct.json")).read_text(encoding="utf-8"))
        above = tree.get(record)
        while above:
            name = above if isinstance(above, str) else above[0]
            found.append(name)
            above = tree.get(name)
    return f" | in {', '.join(found)}" if found else ""


def _row(name: str, where: str, said: str) -> Row:
    unsure = said.startswith((CANNOT_TELL, TOO_LITTLE))
    if not where:
        return Row(name, SILENT, said, said == SILENT, unsure)
    return Row(name, where, said, not unsure and re.search(where, said) is not None, unsure)


def said_of(target: Path, golden: Path) -> str:
    """The texts of the first divergence, or the answer if there is none."""
    try:
        results = [summarise(result).as_json() for result in compare(str(target), str(golden))]
    except MsprobeException as error:
        return f"refused: {error}"
    answers = [_answer(result) for result in results]
    return next((answer for answer in answers if answer != SILENT), SILENT)


def _answer(result: dict[str, Any]) -> str:
    divergence = result.get("divergence") or {}
    first = divergence.get("first")
    if first:
        return " | ".join(value for value in first.values() if isinstance(value, str) and value)
    if divergence.get("answer") == "cannot_tell":
        return f"{CANNOT_TELL}: {divergence.get('why')}"
    coverage = result["coverage"]
    if not divergence and not coverage_is_enough(coverage):
        return f"{TOO_LITTLE}: {coverage}"
    return SILENT


def coverage_is_enough(coverage: dict[str, Any]) -> bool:
    """True if the answer "no divergence" stands on enough records."""
    from probe.compare.coverage import Coverage

    return bool(Coverage(**coverage).is_enough)
