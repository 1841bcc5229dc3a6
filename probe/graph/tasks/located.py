"""Which dumps are shown beside each other, and which have nothing beside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from probe.common import log
from probe.common.dump.layout import (
    DUMP_FILE,
    JOURNAL_FILE,
    RECORD_FILES,
    folder_of,
    holds_records,
    step_and_rank,
    steps_in,
)
from probe.common.dump.runs import processes_of
from probe.common.errors import FileCheckException
from probe.common.match.dump_pairs import locate

_KINDS = ("", "graph", "pynative")


@dataclass(frozen=True)
class Place:
    """Where the dumps of one comparison are; each is a file or the folder of a process."""

    target: str
    golden: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    before: Optional[tuple[str, str]] = None  # noqa: UP045
    """The dumps of the step before."""
    run: str = ""
    """The path of the run where there are several."""
    step: str = ""
    """What tells it from the other pairs of both runs, as ``compare`` names it."""
    label: str = ""
    """``rank0`` or ``proc123``, as ``compare`` names it."""
    name: str = ""
    """What tells it from others of its run, step and rank: ``proc123``; the golden run's rank where the target has one
    process; ``graph`` and ``pynative`` of MindSpore."""
    run_name: str = ""
    """What the page calls the run, which no other one is called."""

    def absolute(self) -> Place:
        """The same place for a process that runs in another folder."""
        golden = None if self.golden is None else os.path.abspath(self.golden)
        before = self.before and (os.path.abspath(self.before[0]), os.path.abspath(self.before[1]))
        return replace(self, target=os.path.abspath(self.target), golden=golden, before=before)

    def __str__(self) -> str:
        return self.target if self.golden is None else f"{self.target} and {self.golden}"


def located(target: str, golden: str | None, run: str = "") -> tuple[list[Place], list[str]]:
    """The comparisons of two paths, or the dumps of one, and a sentence for each dump that is left alone.

    Args:
        target, golden: a file, the folder of a process or a step, or a folder of steps.
        run: what tells these comparisons from those of other paths.

    Raises:
        FileCheckException: there is nothing, or nothing that belongs together.
    """
    if golden is None:
        return _with_names([Place(path, run=run) for path in dumps_in(target)]), []
    for path in filter(os.path.isdir, (target, golden)):
        dumps_in(path)
    with log.collected() as lines:
        pairs = locate(target, golden)
    # What it warns of is said below, of every dump.
    log.show(line for line in lines if line.level < log.WARNING)
    places = [Place(pair.target, pair.golden, pair.before, run, pair.step, pair.label) for pair in pairs]
    alone = [*_alone(target, (pair.target for pair in pairs), "golden run", golden)]
    alone += _alone(golden, (pair.golden for pair in pairs), "target", target)
    return _with_names(places), alone


def _with_names(places: Sequence[Place]) -> list[Place]:
    """The comparisons of one run, each with what tells it from others of its step and rank."""
    known = [step_and_rank(os.path.join(folder_of(place.target), DUMP_FILE)) for place in places]
    count = Counter(known)
    return [
        replace(place, name=_name(place, rank)) if count[step, rank] > 1 else place
        for place, (step, rank) in zip(places, known)
    ]


def _name(place: Place, rank: int | None) -> str:
    """``graph proc123`` of ``run/graph/step0/proc123``."""
    *_, kind, _, name = ["", "", *os.path.abspath(folder_of(place.target)).split(os.sep)]
    name = place.label or name
    return " ".join([*([kind] if kind in _KINDS else []), *([name] if name != f"rank{rank}" else [])])


def dumps_in(path: str) -> list[str]:
    """The folders of all processes below a path, or the path itself where it is one, in order of steps and ranks.

    Raises:
        FileCheckException: there is none.
    """
    if os.path.isfile(path):
        if os.path.basename(path) not in (*RECORD_FILES, JOURNAL_FILE):
            allowed = ", ".join((*RECORD_FILES, JOURNAL_FILE))
            raise FileCheckException(f"{path}: a file to show is called {allowed}.")
        return [path]
    if not os.path.isdir(path):
        raise FileCheckException(f"{path} does not exist.")
    if holds_records(path):
        return [path]
    found = [folder for step in steps_of(path) or [path] for folder in _processes(step)]
    if not found:
        raise FileCheckException(
            f"{path} holds no dump; give a dump.json, the folder of a rank or a step, or a folder of steps."
        )
    return found


def steps_of(path: str) -> list[str]:
    """The folders of the steps below a path; none where it is not one of several steps."""
    kinds = [os.path.join(path, kind) if kind else path for kind in _KINDS]
    return [os.path.join(kind, step) for kind in kinds if os.path.isdir(kind) for step in steps_in(kind)]


def _processes(step: str) -> Iterator[str]:
    """Those of the last run, and those of which nobody can say whether they are of another one."""
    found = processes_of(step)
    if found.earlier:
        log.warning(found.left_out("shown"), once=f"earlier run in {step}")
    yield from (each.path for each in found.possible)


def _alone(path: str, shown: Iterable[str], side: str, other: str) -> Iterator[str]:
    if not os.path.isdir(path):
        return
    beside = {os.path.normpath(folder_of(each)) for each in shown}
    for folder in dumps_in(path):
        if os.path.normpath(folder) not in beside:
            yield f"{folder} has no counterpart in the {side} {other}: it is not compared."
