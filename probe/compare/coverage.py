"""The compared part of two runs: the records of both sides that have a counterpart, and the number of all.

"No divergence" is said of that share alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from probe.common.align.calls import KeyedCall
from probe.common.align.row import Row
from probe.common.dump.naming import FORWARD, is_module, parse
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import INPUT, OUTPUT, PARAMETERS
from probe.common.dump.reading.sources import Tree

ENOUGH = 0.8
"""The share of records from which on silence means something."""
_ANYTHING = 0.1
"""The share of parameters below which two runs are of two models, and what happens to correspond says nothing."""
_SEVERAL = 10
"""The least number of parameters for that judgement."""

_FIRST_CALL = ".forward.0"


@dataclass(frozen=True)
class Coverage:
    """Records and parameters of both sides."""

    compared_records: int = 0
    """Those with a counterpart, those that only compute again what such a record has, and those inside of a module with
    a counterpart, which are judged at its border."""
    records: int = 0
    compared_parameters: int = 0
    parameters: int = 0

    @property
    def is_enough(self) -> bool:
        """True if so much was compared that silence means something."""
        return self.compared_records >= ENOUGH * self.records

    @property
    def is_of_two_models(self) -> bool:
        """True if so little corresponds that not even a difference means something.

        Optimizers call the same functions for every model, and each ends in a loss; parameters tell.
        """
        has_several = self.parameters >= _SEVERAL
        return has_several and self.compared_parameters < _ANYTHING * self.parameters and not self.is_enough

    @property
    def is_whole(self) -> bool:
        """True if every record was compared."""
        return self.compared_records == self.records


def coverage(
    pairs: Iterable[tuple[str | None, str | None]],
    golden_records: Iterable[str],
    trees: tuple[Tree | None, Tree | None],
    parameters: tuple[int, int],
    calls: tuple[Iterable[KeyedCall], Iterable[KeyedCall]] = ((), ()),
) -> Coverage:
    """The compared part of two runs.

    Args:
        pairs: the records of the target with their counterparts, as far as they have any; ``None`` where not.
        golden_records: all records of the golden side that hold anything.
        trees: the call trees of target and golden side.
        parameters: what `count_parameters` says of all rows.
        calls: the calls of both sides, in which those are looked for that were made once more (`recomputed`).
    """
    pairs = list(pairs)
    both = [(record, golden) for record, golden in pairs if record and golden]
    matched_target, matched_golden = {record for record, _ in both}, {golden for _, golden in both}
    target_records = [record for record, _ in pairs if record]
    sides = (target_records, matched_target, trees[0], calls[0]), (golden_records, matched_golden, trees[1], calls[1])
    compared = total = 0
    for records, matched, tree, of_side in sides:
        names = list(records)
        total += len(names)
        compared += len(names)
        if any(record not in matched for record in names):
            compared -= _without_counterpart(names, matched | recomputed(of_side, matched), tree or {})
    return Coverage(compared, total, *parameters)


def _without_counterpart(records: Sequence[str], matched: set[str], tree: Tree) -> int:
    """Number of records that have no counterpart, and nothing that is judged instead.

    That is the innermost module with a counterpart, if it is right around the call of a function, or holds no more than
    half of the run: the border of a whole program says too little of what is in it. In an optimizer it is a call of the
    same function for another parameter: three projections of one run have three times the calls of the fused one.
    """
    alike = {kind for record in matched if (kind := _kind_in_scope(record, tree)) is not None}
    around = {
        record: _innermost(record, matched, tree)
        for record in records
        if record not in matched and not (alike and _kind_in_scope(record, tree) in alike)
    }
    held = Counter(filter(None, around.values()))
    number = 0
    for record, module in around.items():
        is_function_of = module is not None and not is_module(record) and tree.get(record) == module
        number += not (is_function_of or (module is not None and 2 * held[module] <= len(records)))
    return number


def _kind_in_scope(record: str, tree: Tree) -> tuple[str, str] | None:
    """The scope that is no module, such as an optimizer, and the function; ``None`` of calls that stand in no such."""
    scope = tree.get(record)
    parsed = None if not scope or is_module(scope) else parse(record)
    return None if parsed is None or scope is None else (scope, parsed.base)


def _innermost(record: str, matched: set[str], tree: Tree) -> str | None:
    return next((module for module in around(tree, record) if module in matched), None)


def recomputed(calls: Iterable[KeyedCall], matched: Container[str]) -> set[str]:
    """The forward records that have the tensors of an earlier record of the same function or module.

    Checkpointing makes them: a forward is run once more for its backward.

    Args:
        calls: the calls of one side.
        matched: the records of that side with a counterpart.
    """
    earlier: set[tuple[Any, ...]] = set()
    found = set()
    for call in calls:
        parsed = call.record.parsed
        if parsed is None or parsed.direction != FORWARD:
            continue
        tensors = [item for item in call.items if item.is_tensor and item.state in (INPUT, OUTPUT)]
        if not any(item.state == OUTPUT and (item.norm, item.md5) != (None, None) for item in tensors):
            continue
        key = (parsed.base, *((item.max, item.min, item.norm, item.md5, item.shape) for item in tensors))
        if call.record.name in matched:
            earlier.add(key)
        elif key in earlier:
            found.add(call.record.name)
    return found


def count_parameters(rows: Iterable[Row]) -> tuple[int, int]:
    """The number of parameters of both sides that have a counterpart, and how many there are."""
    compared = total = 0
    for row in rows:
        item = row.target or row.golden
        if item is None or item.state != PARAMETERS or not row.record.endswith(_FIRST_CALL):
            continue
        is_matched = row.target is not None and row.golden is not None
        total += 1 + is_matched
        compared += 2 * is_matched
    return compared, total
