"""The calls of the ranks on a page that exchange data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from probe.common.collectives.collectives import is_communication
from probe.common.dump.layout import folder_of
from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.graph.output.shown import ShownComparison
from probe.graph.page.columns import Columns
from probe.graph.tasks.task import GraphTask, Task

if TYPE_CHECKING:
    from probe.shards.partners import Partners


class CommunicationPartners:
    """The partners of the communication calls of each step of which several ranks are on the page.

    They are looked for when the first comparison of a step that communicates is there: other processes go on with the
    next ones meanwhile, and where nothing communicates no dump is read for it.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._paths: dict[str, dict[str, None]] = {}
        """The dumps of each step, by its folder."""
        for task in tasks:
            if isinstance(task, GraphTask):
                self._paths.setdefault(_step(task), {})[task.location.target] = None
        self._partners: dict[str, Partners] = {}

    def added(self, shown: ShownComparison, task: Task) -> ShownComparison:
        """A comparison that says with which calls of other ranks those of the target exchange data."""
        columns, step = shown.columns, _step(task)
        rank = columns.rank
        if rank is None or len(self._paths.get(step, ())) < 2 or not any(map(is_communication, columns.texts)):
            return shown
        found = self._of_step(step)
        add_partners(found, rank, columns)
        names = shown.diff.target.names if shown.diff is not None else ()
        links = {node: found.matched_distributed(rank, name) for node, name in enumerate(names)}
        return replace(shown, exchanged={node: link for node, link in links.items() if link})

    def _of_step(self, step: str) -> Partners:
        if step not in self._partners:
            # Few runs communicate, and the others need not wait for it.
            from probe.shards.partners import Partners, partners

            dumps = _dumps(self._paths[step])
            self._partners[step] = partners(dumps) if len(dumps) > 1 else Partners()
        return self._partners[step]


def add_partners(found: Partners, rank: int, columns: Columns) -> None:
    """Say of the rows of a rank which calls of other ranks belong to them, and which calls lack one."""
    for row, index in enumerate(columns.name.tolist()):
        of_call = found.of_calls.get((rank, columns.texts[index])) if index >= 0 else None
        if of_call:
            columns.details.partners[row] = [(each.rank, each.name, each.text) for each in of_call]
    columns.notes += found.unpaired_of([rank])


def _step(task: Task) -> str:
    return os.path.dirname(os.path.abspath(folder_of(task.location.target)))


def _dumps(paths: Iterable[str]) -> dict[int, Dump]:
    """The dumps of the ranks; what cannot be read is named where it is compared."""
    dumps: dict[int, Dump] = {}
    for path in paths:
        try:
            dump = read(path)
        except (MsprobeException, OSError):
            continue
        if dump.rank is not None:
            dumps[dump.rank] = dump
    return dumps
