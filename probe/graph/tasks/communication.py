"""Which calls of the ranks on a page exchange data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.common.match.collectives import is_communication
from probe.graph.page.columns import Columns
from probe.graph.tasks.task import GraphTask, Task
from probe.graph.writers.made import Made

if TYPE_CHECKING:
    from probe.graph.merging.partners import Partners


@dataclass(frozen=True)
class Communication:
    """The partners of the calls of all steps."""

    steps: dict[tuple[str, str], Partners] = field(default_factory=dict)
    """By the run's name and the folder of the step."""

    def added(self, made: Made, task: Task) -> Made:
        """A comparison that says with which calls of other ranks those of the target exchange data."""
        found = self.steps.get((task.place.run, os.path.dirname(task.place.target)))
        rank = made.columns.rank
        if found is None or rank is None:
            return made
        add_partners(found, rank, made.columns)
        nodes: dict[int, Any] = {}
        for node, name in enumerate(made.diff.target.names if made.diff is not None else ()):
            said = found.matched_distributed(rank, name)
            if said:
                nodes[node] = said
        return replace(made, exchanged=nodes)


def add_partners(found: Partners, rank: int, columns: Columns) -> None:
    """Say of the rows of a rank which calls of other ranks belong to them, and which calls lack one."""
    for row, place in enumerate(columns.name.tolist()):
        of_call = found.of_calls.get((rank, columns.texts[place])) if place >= 0 else None
        if of_call:
            columns.details.partners[row] = [(each.rank, each.name, each.text) for each in of_call]
    columns.notes += found.unpaired_of([rank])


def communication(tasks: Sequence[Task]) -> Communication:
    """The partners of the communication calls of each step of which several ranks are on the page."""
    steps: dict[tuple[str, str], list[str]] = {}
    for task in tasks:
        if isinstance(task, GraphTask):
            steps.setdefault((task.place.run, os.path.dirname(task.place.target)), []).append(task.place.target)
    found = Communication()
    for step, paths in steps.items():
        dumps = _dumps(paths)
        if len(dumps) > 1:
            # Few runs communicate, and the others need not wait for it.
            from probe.graph.merging.partners import partners

            found.steps[step] = partners(dumps)
    return found


def _dumps(paths: Sequence[str]) -> dict[int, Dump]:
    """The dumps of the ranks, if they communicate; what cannot be read is named where it is compared."""
    dumps: dict[int, Dump] = {}
    for path in dict.fromkeys(paths):
        if len(paths) < 2:
            break
        try:
            dump = read(path)
        except (MsprobeException, OSError):
            continue
        if dump.rank is None or not any(is_communication(record.name) for record in dump):
            # Where one rank communicates, every rank does.
            break
        dumps[dump.rank] = dump
    return dumps
