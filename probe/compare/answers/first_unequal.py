"""The first call that returns or takes another thing where all before it was equal, in every digit of its statistics.

Two programs that call the same kernels on the same numbers get the same numbers. Where one of another kernel rounds
otherwise for the first time, that is one rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from probe.common.align.row import Row
from probe.common.dump.naming import is_forward, is_module
from probe.common.numerics.error_bounds import relative_difference
from probe.common.numerics.formats import unit_roundoff
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.peers.random_error import random_error
from probe.compare.divergence.two_programs.held_values import SPREAD
from probe.compare.divergence.two_programs.regions import Regions
from probe.compare.result import Difference

_FEWEST = 10
"""The number of equal results before it that show that the programs call the same kernels. A guess."""
_MOST_ROUNDINGS = 10
"""The number of roundings that calls without a counterpart make between equal values and the next that is compared. A
guess: attention in steps makes six."""


def first_unequal(calls: Sequence[AlignedCall], regions: Regions) -> Difference | None:
    """The first result that is not equal, if everything that its call takes is and one rounding hardly explains it.

    Or the first tensor that a call takes, if the calls between, which have no counterparts, hardly explain it.

    Calls that do not compute the same, as far as their parameters and inputs tell, may return other things. So may a
    single one where all layers behind it return equal results.
    """
    found = [
        each
        for each in _unequal_results(calls)
        if regions.is_same_computation(each[0]) and not regions.is_returned_later(each[1])
    ]
    if not found or (len(found) == 1 and _is_equal_behind(calls, found[0][0], regions)):
        return None
    call, result, equal = found[0]
    if equal < _FEWEST:
        return None
    taken = next((row for row in call.rows if is_input(row) and _rounds(row) and _differs(row)), None)
    if taken is None:
        return _found(call, result, 1, 0.0)
    # A value that was cast has the rounding of a type before.
    return _found(call, taken, _MOST_ROUNDINGS, max(map(_roundoff, _rows_of(calls)), default=0.0))


def _is_equal_behind(calls: Sequence[AlignedCall], unequal: AlignedCall, regions: Regions) -> bool:
    """True if layers behind a call return equal results."""
    place = next(index for index, call in enumerate(calls) if call is unequal)
    layers = (
        call
        for call in calls[place + 1 :]
        if call.golden_record and is_module(call.record or "") and is_forward(call.record or "")
    )
    return any(regions.is_same_computation(call) for call in layers)


def _rows_of(calls: Sequence[AlignedCall]) -> Iterator[Row]:
    return (row for call in calls for row in call.rows if _rounds(row))


def _roundoff(row: Row) -> float:
    return 0.0 if row.golden is None else unit_roundoff(row.golden.dtype) or 0.0


def first_by_argument(calls: Sequence[AlignedCall], differing: Sequence[Difference]) -> tuple[Difference, Row] | None:
    """An argument of the first call that returns another thing, where all that it and calls before it take is equal.

    Whatever rounding may hide: the same kernel makes another thing of the same numbers, because of the argument.

    Args:
        calls: the calls of both runs, in order.
        differing: the differences of which nobody can tell whether they have an effect.
    """
    call, result, equal = next(_unequal_results(calls), (None, None, 0))
    if call is None or result is None or equal < _FEWEST or any(_differs(row) for row in call.rows if is_input(row)):
        return None
    names = {(each.record, each.item): each for each in differing}
    of_call = (names.get((call.record or "", differences.item_name(row))) for row in call.rows if _is_plain(row))
    found = next(filter(None, of_call), None)
    return None if found is None else (found, result)


def _unequal_results(calls: Sequence[AlignedCall]) -> Iterator[tuple[AlignedCall, Row, int]]:
    """The first unequal result of each call of the forward that has one, and the number of equal results before it."""
    equal = 0
    for call in calls:
        if not (call.record and call.golden_record) or not is_forward(call.record):
            continue
        results = [row for row in call.rows if not is_input(row) and _rounds(row)]
        apart = next(filter(_differs, results), None)
        if apart is None:
            equal += len(results)
        else:
            yield call, apart, equal


def _is_plain(row: Row) -> bool:
    """True if both sides give a number or a word."""
    kinds = {None if item is None else type(item.value) for item in (row.target, row.golden)}
    return is_input(row) and (kinds == {float} or kinds == {str})


def _found(call: AlignedCall, row: Row, roundings: int, coarsest: float) -> Difference | None:
    target, golden = row.target, row.golden
    if target is None or golden is None or target.dtype != golden.dtype:
        return None
    error = random_error(target, golden)
    # The errors of one rounding are spread evenly up to the unit roundoff.
    one_rounding = max(unit_roundoff(golden.dtype), coarsest) / math.sqrt(3.0)
    if error is None or error <= SPREAD * roundings * one_rounding:
        return None
    reason = differences.of_first_unequal(row, error, one_rounding, roundings)
    return Difference(call.record or "", call.golden_record or "", differences.item_name(row), reason, error, True)


def _rounds(row: Row) -> bool:
    items = (row.target, row.golden)
    return all(item is not None and item.is_tensor and unit_roundoff(item.dtype) for item in items)


def _differs(row: Row) -> bool:
    target, golden = row.target, row.golden
    if target is None or golden is None or not target.is_tensor or not golden.is_tensor:
        return False
    return bool(relative_difference(target, golden))
