"""What a comparison says of a pair first, and whether that is right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pairs.cases import PAIRS, SILENT, Pair
from pairs.dumping import folder_of, is_made

from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.common.parallel.tasks import Where
from probe.compare.output.summary import SUSPECTS, Summary
from probe.compare.output.summary_text import UNTOLD, headline
from probe.compare.runner import summaries

WITH_MODULES = "mix:statistics"


@dataclass(frozen=True)
class Outcome:
    """One comparison."""

    name: str
    setting: str
    truth: str
    said: str
    right: bool
    is_unjudged: bool = False
    """True if it was said that it cannot be told: an answer of its own, and right of no pair."""
    next_right: bool = False
    """Whether one of the next calls that are named is what is true; of a wrong one."""


def judge(dumps: Path, name: str, setting: str) -> Outcome:
    pair = PAIRS[name]
    folder = folder_of(dumps, name, setting)
    for side in ("golden", "target"):
        if not is_made(dumps, name, setting, side):
            return Outcome(name, setting, truth_of(pair), f"no dump: the {side} run failed, or was not made", False)
    try:
        # In this process: the dumps are small, and no file is wanted.
        found = list(summaries(str(folder / "target"), str(folder / "golden"), where=Where(1)))
    except MsprobeException as error:
        return Outcome(name, setting, truth_of(pair), f"refused: {error}".replace(str(dumps), "..."), False)
    first = texts(found)
    sides = [folder_of(dumps, name, WITH_MODULES) / side for side in ("target", "golden")]
    if setting.startswith("L1:") and all(side.is_dir() for side in sides):
        first = _with_modules(first, sides)
    if not first:
        said = headline(found)[0][0]
        is_unjudged = said.startswith(UNTOLD)
        # That nobody can tell claims nothing, and is not what a right pair is.
        right = not is_unjudged and (not pair.right or bool(re.search(pair.right, SILENT)))
        return Outcome(name, setting, truth_of(pair), said, right, is_unjudged)
    if pair.is_silent:
        return Outcome(name, setting, truth_of(pair), first[0], False)
    right = bool(re.search(pair.right, first[0]))
    later = not right and any(re.search(pair.right, text) for text in first[1:])
    return Outcome(name, setting, truth_of(pair), first[0], right, next_right=later)


def texts(found: Sequence[Summary]) -> list[str]:
    """All texts of the first divergence of any pair of steps and ranks, and then of the calls that come after it."""
    for summary in found:
        if summary.divergence is not None:
            calls = (summary.divergence.first, *summary.divergence.suspects[:SUSPECTS])
            where = f"{summary.step} {summary.label} "
            return [
                where + " | ".join(value for value in asdict(call).values() if isinstance(value, str) and value)
                for call in calls
            ]
    return []


def _with_modules(first: list[str], folders: Sequence[Path]) -> list[str]:
    """`first` with the modules around each call, which dumps of functions alone do not have and those at mix do."""
    trees = [read(next(folder.glob("step0/*/dump.json"))).tree or {} for folder in folders]
    return [f"{text} | {' | '.join(_around(text, trees))}" for text in first]


def _around(text: str, trees: Sequence[Mapping[str, str | None]]) -> Iterator[str]:
    for tree in trees:
        for record in text.replace("|", " ").split():
            while around := tree.get(record):
                yield around
                record = around


def truth_of(pair: Pair) -> str:
    """What is true of a pair, for a table."""
    text = f"`{pair.right}`" if pair.right else SILENT
    return f"{text} ({pair.note})" if pair.note else text
