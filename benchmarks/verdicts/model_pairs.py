"""Pairs of models as people compare them: `tests/support/pairs` has them, makes their dumps and judges."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from verdicts import Row, Work

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from pairs import dumping, judging
from pairs.cases import LISTS, PAIRS, Run

SETTINGS = ("mix:statistics", "L0:statistics", "L1:statistics", "mix:tensor")
SHOWN = SETTINGS[0]
"""The setting of which the report has what was said of every pair."""

_PROCESS = re.compile(r"proc[0-9]+:? ")


def names_of(name: str, work: Work, only: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The pairs of a list, and those of them for which an interpreter is missing."""
    asked = [each for each in LISTS[name] if not only or each in only]
    if not work.makes:
        return asked, []
    possible = [each for each in asked if all(side.environment in work.pythons for side in _runs(each))]
    return possible, [each for each in asked if each not in possible]


def _runs(name: str) -> tuple[Run, Run]:
    return PAIRS[name].target, PAIRS[name].golden


def rows(work: Work, names: Sequence[str], settings: Sequence[str] = SETTINGS) -> Iterator[Row]:
    """Make what is missing, and judge."""
    if work.makes:
        work.dumps.mkdir(parents=True, exist_ok=True)
        dumping.make(work.dumps, [(name, setting) for setting in settings for name in names], work.pythons)
    for setting in settings:
        for name in names:
            found = judging.judge(work.dumps, name, setting)
            # The number of a process says nothing.
            said = _PROCESS.sub("", found.said)
            kind = PAIRS[name].kind
            yield Row(name, found.truth, said, found.right, setting, kind, found.is_unjudged, found.next_right)
