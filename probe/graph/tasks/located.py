"""The dumps that are shown beside each other, and which have nothing beside them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from probe.common.align.dump_pairs import pairs_of
from probe.common.dump.layout import folder_of
from probe.common.dump.reading.runs import DumpLocation, FoundDumps, dumps_in, find_dumps, warn_of_left_out


@dataclass(frozen=True)
class GraphLocation:
    """The location of the dumps of one comparison; each is a file or the folder of a process."""

    target: str
    golden: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    before: Optional[tuple[str, str]] = None  # noqa: UP045
    """The dumps of the step before."""
    run: str = ""
    """The path of the run where there are several."""
    step: str = ""
    """The mark that tells it from the other pairs of both runs, as ``compare`` names it."""
    label: str = ""
    """``rank0`` or ``proc123``, as ``compare`` names it."""
    name: str = ""
    """The name that tells it from others of its run, step and rank: ``proc123``; the golden run's rank if the target
    has one process; ``graph`` and ``pynative`` of MindSpore."""
    run_name: str = ""
    """The name on the page of the run, which no other one is called."""
    missing: tuple[str, ...] = ()
    """The steps and ranks that one run has alone, as ``compare`` tells them."""

    def absolute(self) -> GraphLocation:
        """The location for a process that runs in another folder."""
        golden = None if self.golden is None else os.path.abspath(self.golden)
        before = self.before and (os.path.abspath(self.before[0]), os.path.abspath(self.before[1]))
        return replace(self, target=os.path.abspath(self.target), golden=golden, before=before)

    def __str__(self) -> str:
        return self.target if self.golden is None else f"{self.target} and {self.golden}"


def located(target: str, golden: str | None, run: str = "") -> tuple[list[GraphLocation], list[str]]:
    """The comparisons of two paths, or the dumps of one, and a sentence for each dump that is left alone.

    Args:
        target, golden: a file, the folder of a process or a step, or a folder of steps.
        run: what tells these comparisons from those of other paths.

    Raises:
        FileCheckException: there is nothing, or nothing that belongs together.
    """
    if golden is None:
        return _with_names([GraphLocation(each.path, run=run) for each in dumps_in(target)]), []
    sides = find_dumps(target), find_dumps(golden)
    warn_of_left_out(*sides)
    pairs = pairs_of(*sides)
    locations = [
        GraphLocation(pair.target, pair.golden, pair.before, run, pair.step, pair.label, missing=pair.missing)
        for pair in pairs
    ]
    alone = [*_alone(sides[0], (pair.target for pair in pairs), "golden run", golden)]
    alone += _alone(sides[1], (pair.golden for pair in pairs), "target", target)
    return _with_names(locations), alone


def _with_names(locations: Sequence[GraphLocation]) -> list[GraphLocation]:
    """The comparisons of one run, each with what tells it from others of its step and rank."""
    known = [DumpLocation.of(graph_location.target) for graph_location in locations]
    count = Counter((each.step, each.rank) for each in known)
    return [
        replace(graph_location, name=_name(graph_location, each)) if count[each.step, each.rank] > 1 else graph_location
        for graph_location, each in zip(locations, known)
    ]


def _name(graph_location: GraphLocation, location: DumpLocation) -> str:
    """``graph proc123`` of ``run/graph/step0/proc123``."""
    name = graph_location.label or location.name
    return " ".join(filter(None, (location.mode, name if name != f"rank{location.rank}" else "")))


def _alone(found: FoundDumps, shown: Iterable[str], side: str, other: str) -> Iterator[str]:
    if os.path.isfile(found.path):
        return
    beside = {os.path.normpath(folder_of(each)) for each in shown}
    for each in (*found.dumps, *found.uncertain):
        if os.path.normpath(each.folder) not in beside:
            yield f"{each.folder} has no counterpart in the {side} {other}: it is not compared."
