"""The processes of two runs that belong together where they have no ranks: by what they ran, then by their order.

The number of a process differs in every run, and which worker of a pool gets which work may differ as well. So two
processes belong together if they have recorded the same calls; of several such, those whose first values agree; and
of several such again, those that were started at the same index of the order.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from probe.common import log
from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException

_FIRST = 4
"""Records of which the values are looked at: those that stand before any difference between two runs, mostly."""
_MOST_COMPARED = 4096
"""Pairs of processes of which the records are looked at; of more only the order."""


@dataclass(frozen=True)
class _Work:
    """The recorded work of a process."""

    names: frozenset[str]
    first_values: tuple[str, ...]


_NOTHING = _Work(frozenset(), ())


def pair_processes(target: Sequence[str], golden: Sequence[str]) -> list[tuple[int, int]]:
    """The indices of the folders that belong together, in the order of the target's.

    Args:
        target, golden: The folders of the processes of one step, each in the order in which these were started.

    Returns:
        As many pairs as the shorter one has folders.
    """
    if len(target) * len(golden) > _MOST_COMPARED:
        return list(zip(range(len(target)), range(len(golden))))
    of_target, of_golden = [_work(path) for path in target], [_work(path) for path in golden]
    ranked = sorted(
        ((index, other) for index in range(len(target)) for other in range(len(golden))),
        key=lambda pair: (*_unlikeness(of_target[pair[0]], of_golden[pair[1]]), abs(pair[0] - pair[1]), pair),
    )
    found: dict[int, int] = {}
    taken: set[int] = set()
    for index, other in ranked:
        if index not in found and other not in taken:
            found[index] = other
            taken.add(other)
    return sorted(found.items())


class PoolTasks:
    """The tasks that the processes of two runs took; a pool may hand them out in another order in every run.

    Args:
        target, golden: The folders of all processes without a rank, of all steps.
    """

    def __init__(self, target: Sequence[str], golden: Sequence[str]) -> None:
        self._target = target
        self._golden = golden
        self._first_values: dict[str, tuple[str, ...]] = {}

    @property
    def has_pool(self) -> bool:
        """True if a run has several processes, which can take tasks in another order."""
        return any(len(set(map(os.path.basename, paths))) > 1 for paths in (self._target, self._golden))

    def differ(self, target: str, golden: str) -> bool:
        """True if two paired processes have computed different tasks at a step, given their folders of this step.

        They have if the first values differ, and those of one are found in another process of the other run, but not
        in the one that it is paired with: a process that diverges computes values that no process of the other run has.
        """
        if target not in self._target or golden not in self._golden:
            return False
        one, other = self._values(target), self._values(golden)
        if one == other or not one or not other:
            return False
        return self._are_elsewhere(one, golden, self._golden) or self._are_elsewhere(other, target, self._target)

    def _are_elsewhere(self, values: tuple[str, ...], path: str, paths: Sequence[str]) -> bool:
        """True if a process has `values` at any step, and that of `path` at none."""
        has_them = {os.path.basename(each) for each in paths if self._values(each) == values}
        return bool(has_them) and os.path.basename(path) not in has_them

    def _values(self, path: str) -> tuple[str, ...]:
        found = self._first_values.get(path)
        if found is None:
            found = self._first_values[path] = _work(path).first_values
        return found


def _unlikeness(one: _Work, other: _Work) -> tuple[float, bool]:
    """0 for the same calls, 1 for none in common; and whether their first values differ."""
    every = one.names | other.names
    in_common = len(one.names & other.names) / len(every) if every else 0.0
    return 1 - in_common, one.first_values != other.first_values


def _work(path: str) -> _Work:
    try:
        dump = read(path)
        return _Work(frozenset(record.name for record in dump), _first_values(dump))
    except (MsprobeException, OSError) as error:
        # Whoever compares it says so as well.
        log.debug(f"{path} cannot be read, and is paired by its order: {error}")
        return _NOTHING


def _first_values(dump: Dump) -> tuple[str, ...]:
    """The inputs of the first calls as text, in which a NaN equals itself."""
    found: list[str] = []
    for record in dump.records[:_FIRST]:
        for item in dump.items(record):
            if item.state != "output":
                found.append(repr((item.shape, item.max, item.min, item.mean, item.norm, item.md5)))
    return tuple(found)
