"""The compared part of two runs: the records of both sides that have a counterpart, and the number of all.

"No divergence" is said of that share alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from probe.common.align.counterparts import CallPair
from probe.common.align.one_sided import LEFT_OUT, RECOMPUTED
from probe.common.align.row import Row
from probe.common.dump.naming import is_module
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import INPUT, PARAMETERS
from probe.common.dump.reading.sources import Tree
from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import unit_roundoff

ENOUGH = 0.8
"""The share of records from which on silence means something; a guess."""
_ANYTHING = 0.1
"""The share of parameters below which two runs are of two models, and what corresponds says nothing; a guess."""
_SEVERAL = 10
"""The least number of parameters for that judgement; a guess."""

_FIRST_CALL = ".forward.0"


@dataclass(frozen=True)
class Coverage:
    """Records and parameters of both sides."""

    compared_records: int = 0
    """Records with a counterpart, records that only compute again what such a record has, and records inside a module
    with a counterpart, which are judged at its border."""
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


def coverage(pairs: Sequence[CallPair], trees: tuple[Tree | None, Tree | None], shared: int = 0) -> Coverage:
    """The compared part of two runs.

    A call that computes again what a paired one has is compared with it. What one side cannot have counts for nothing.

    Args:
        pairs: the calls side by side.
        trees: the call trees of target and golden side.
        shared: the number of parameters that optimizers of both sides update, by their names.
    """
    pairs = [pair for pair in pairs if pair.how not in LEFT_OUT]
    of_both = [pair for pair in pairs if pair.how == RECOMPUTED or _is_compared(pair)]
    compared = total = 0
    for name, tree in zip((attrgetter("record"), attrgetter("golden_record")), trees):
        made = [pair for pair in pairs if name(pair)]
        matched = {name(pair) for pair in of_both if name(pair)}
        total += len(made)
        compared += len(made) - _without_counterpart([name(pair) for pair in made], matched, tree or {})
    matched_parameters, parameters = count_parameters(row for pair in pairs for row in pair.rows)
    return Coverage(compared, total, min(max(matched_parameters, 2 * shared), parameters), parameters)


def _without_counterpart(records: Sequence[str], matched: set[str], tree: Tree) -> int:
    """Number of records that have no counterpart, and nothing that is judged instead.

    That is the innermost module with a counterpart, if it is right around the call of a function, or holds no more than
    half of the run: the border of a whole program says too little of what is in it.
    """
    around = {record: _innermost(record, matched, tree) for record in records if record not in matched}
    held = Counter(filter(None, around.values()))
    number = 0
    for record, module in around.items():
        is_function_of = module is not None and not is_module(record) and tree.get(record) == module
        number += not (is_function_of or (module is not None and 2 * held[module] <= len(records)))
    return number


def _innermost(record: str, matched: set[str], tree: Tree) -> str | None:
    return next((module for module in around(tree, record) if module in matched), None)


def _is_compared(pair: CallPair) -> bool:
    return bool(pair.record and pair.golden_record) and has_compared_values(pair)


def has_compared_values(call: CallPair) -> bool:
    """True unless every floating-point output that both sides have has another number of elements on the other."""
    if not call.record or not call.golden_record:
        return True
    found = True
    for row in call.rows:
        target, golden = row.target, row.golden
        if target is None or golden is None or target.state in (INPUT, PARAMETERS):
            continue
        if not (target.is_tensor and golden.is_tensor):
            continue
        if unit_roundoff(target.dtype):
            if extent(target.shape).elements == extent(golden.shape).elements:
                return True
            found = False
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
