"""Which processes of two runs belong together where they have no ranks: by what they ran, then by their order.

The number of a process differs in every run, and which worker of a pool gets which work may differ as well. So two
processes belong together if they have recorded the same calls; of several such, those whose first values agree; and
of several such again, those that were started at the same place in the order.
"""

from __future__ import annotations

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
    """What a process has recorded."""

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
    """What the first calls were given, as text, in which a NaN equals itself."""
    found: list[str] = []
    for record in dump.records[:_FIRST]:
        for item in dump.items(record):
            if item.state != "output":
                found.append(repr((item.shape, item.max, item.min, item.mean, item.norm, item.md5)))
    return tuple(found)
