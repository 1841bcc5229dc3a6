"""How much of two runs was compared: what of both sides has a counterpart, and how much there is.

"No divergence" is said of that share alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probe.common.dump.naming import is_module
from probe.common.dump.reading.records import PARAMETERS
from probe.common.dump.reading.sources import Tree
from probe.common.match.row import Row

ENOUGH = 0.8
"""The share of records from which on silence means something."""

_FIRST_CALL = ".forward.0"


@dataclass(frozen=True)
class Coverage:
    """Records and parameters of both sides."""

    compared_records: int = 0
    """Those with a counterpart. A function inside a module with a counterpart is judged at the module's border."""
    records: int = 0
    compared_parameters: int = 0
    parameters: int = 0

    @property
    def is_enough(self) -> bool:
        """Whether so much was compared that silence means something."""
        return self.compared_records >= ENOUGH * self.records

    @property
    def is_whole(self) -> bool:
        """Whether every record was compared."""
        return self.compared_records == self.records


def coverage(
    pairs: Iterable[tuple[str | None, str | None]],
    golden_records: Iterable[str],
    trees: tuple[Tree | None, Tree | None],
    parameters: tuple[int, int],
) -> Coverage:
    """What was compared of two runs.

    Args:
        pairs: the records of the target with their counterparts, as far as they have any; ``None`` where not.
        golden_records: all records of the golden side that hold anything.
        trees: the call trees of target and golden side.
        parameters: what `count_parameters` says of all rows.
    """
    pairs = list(pairs)
    matched_target = {record for record, golden in pairs if golden}
    matched_golden = {golden for record, golden in pairs if record}
    target_records = [record for record, _ in pairs if record]
    sides = (target_records, matched_target, trees[0]), (golden_records, matched_golden, trees[1])
    compared = total = 0
    for records, matched, tree in sides:
        for record in records:
            total += 1
            compared += record in matched or _is_inside(record, tree or {}, matched)
    return Coverage(compared, total, *parameters)


def _is_inside(record: str, tree: Tree, matched: set[str | None]) -> bool:
    """Whether a function's call is part of a module that has a counterpart."""
    around = None if is_module(record) else tree.get(record)
    return around is not None and around in matched


def count_parameters(rows: Iterable[Row]) -> tuple[int, int]:
    """How many parameters of both sides have a counterpart, and how many there are."""
    compared = total = 0
    for row in rows:
        item = row.target or row.golden
        if item is None or item.state != PARAMETERS or not row.record.endswith(_FIRST_CALL):
            continue
        is_matched = row.target is not None and row.golden is not None
        total += 1 + is_matched
        compared += 2 * is_matched
    return compared, total
