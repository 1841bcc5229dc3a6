"""The differences inside a pair of calls, in words. A sentence without words means no difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from probe.common.align.row import Row
from probe.common.dump.naming import function_name
from probe.common.dump.reading.items import shape_text
from probe.common.dump.reading.records import Item
from probe.common.numerics.dtypes import is_device
from probe.common.numerics.error_bounds import ALTOGETHER, SAFETY, extent, is_number, relative_difference
from probe.common.numerics.formats import is_boolean, is_integer, plain_name, unit_roundoff
from probe.common.operations.lookup import kept_items
from probe.common.operations.signatures import argument_name
from probe.compare.divergence.call_digest import gradient_on_one_side
from probe.compare.divergence.precision import Precision, TypePair
from probe.compare.divergence.propagated_error import PropagatedError
from probe.compare.sentences import (
    FROM_INPUTS,
    NOT_FROM_INPUTS,
    NOT_RECORDED,
    NOTHING,
    THERE,
    Sentence,
    beyond_inputs,
    beyond_peers,
    beyond_recorded,
    elsewhere_in_golden,
    not_finite,
    on_one_side,
    other_dtype,
    other_shape,
    other_value,
)


class Differences:
    """Says what differs in an item.

    Args:
        same_names: true if both sides use the same names for the same things.
        precision: which types differ by design.
        error: how far the runs differed so far.
        is_torch: true if the calls are those of PyTorch, whose arguments have known names.
    """

    def __init__(self, same_names: bool, precision: Precision, error: PropagatedError, is_torch: bool = False) -> None:
        self._is_torch = is_torch
        self._same_names = same_names
        self._precision = precision
        self._error = error

    def in_kind(self, row: Row) -> Sentence:
        """A difference that is no matter of numbers: a missing item, a plain value, a type, a shape."""
        target, golden = row.target, row.golden
        if (
            target is not None and golden is not None and target.dtype == golden.dtype
            and target.shape == golden.shape and target.value is golden.value is None
        ):  # fmt: skip
            return NOTHING
        in_target, in_golden = (item is not None and item.dtype is not None for item in (target, golden))
        if in_target != in_golden:
            side, item = ("target", target) if in_target else ("golden run", golden)
            value = THERE if item is None or item.value is None else str(item.value)
            name = argument(row, self._is_torch)
            return on_one_side(name, value, side) if self._same_names else NOTHING
        if target is None or golden is None or target.dtype is None or golden.dtype is None:
            return NOTHING
        if target.value is not None or golden.value is not None:
            return self._of_plain_values(row, target, golden)
        types = plain_name(target.dtype), plain_name(golden.dtype)
        if types[0] != types[1] and types not in self._precision.design and not self._are_integers_of_frameworks(types):
            return other_dtype(short_name(row), *types)
        if target.shape != golden.shape and self._same_names and not self._error.reshaped:
            return other_shape(short_name(row), _shape(target), _shape(golden))
        return NOTHING

    def _are_integers_of_frameworks(self, types: TypePair) -> bool:
        """True if two types differ in width alone, as labels do: MindSpore takes int32 where torch wants int64."""
        return not self._same_names and all(map(is_integer, types))

    def in_argument(self, row: Row) -> Sentence:
        """Another plain argument: a number, a text, a flag."""
        target, golden = row.target, row.golden
        if target is None or golden is None or target.value is None or golden.value is None:
            return NOTHING
        return self._of_plain_values(row, target, golden)

    def _of_plain_values(self, row: Row, target: Item, golden: Item) -> Sentence:
        value, golden_value = target.value, golden.value
        if not self._same_names or str(value) == str(golden_value) or (is_device(value) and is_device(golden_value)):
            return NOTHING
        if type(value) is float and type(golden_value) is float:
            allowed = self._error.allowed_of_unrecorded(target, golden)
            if relative_difference(target, golden) <= allowed:
                return NOTHING
        return of_argument(row, target, golden, self._is_torch)

    def in_gradient(self, row: Row) -> Sentence:
        """The sentence on a tensor that takes a gradient on one side only, within one framework."""
        target, golden = row.target, row.golden
        if not self._same_names or target is None or golden is None or not gradient_on_one_side(target, golden):
            return NOTHING
        return of_gradient(row, target)


def is_absent_on_one_side(row: Row) -> bool:
    """True if one side has no value here: a gradient that was not asked for, a bias that is ``None``."""
    target, golden = row.target, row.golden
    return target is not None and golden is not None and (target.dtype is None) != (golden.dtype is None)


def is_of_another_size(row: Row) -> bool:
    """True if the two tensors of a row have other numbers of elements, so that their values cannot be compared."""
    target, golden = row.target, row.golden
    if target is None or golden is None or not target.is_tensor or not golden.is_tensor:
        return False
    return extent(target.shape).elements != extent(golden.shape).elements


def is_running_statistic(row: Row) -> bool:
    """True if the item is a running mean or variance, which this call updates for later ones."""
    sides = ((row.golden_record, row.golden), (row.record, row.target))
    return any(
        record is not None and item is not None and item.name[len(record) + 1 :] in kept_items(function_name(record))
        for record, item in sides
    )


def of_output(row: Row, difference: float, of_inputs: float, allowed: float) -> Sentence:
    """An output that differs by more than is explained; the numbers are relative differences."""
    if math.isinf(difference):
        origin = FROM_INPUTS if math.isinf(of_inputs) else NOT_FROM_INPUTS
        return not_finite(short_name(row), _not_finite(row), origin)
    return beyond_inputs(short_name(row), _size(difference), _size(of_inputs), _size(allowed))


def of_other_input(row: Row, difference: float, giver: str, output: Row, found: float) -> Sentence:
    """An output that differs behind an input that the golden run holds in another place; `giver` returns it there."""
    where = f"{giver} returns it in the golden run" if giver else "the golden run has it in another place"
    sizes = (short_name(row), _size(difference)), (short_name(output), _size(found))
    return elsewhere_in_golden(*sizes[0], where, *sizes[1])


def of_leaving(row: Row, error: float, allowed: float, peers: int) -> Sentence:
    """An output whose relative error is larger than that of the calls that are like this one."""
    return beyond_peers(short_name(row), _size(error), _size(allowed), peers)


def of_argument(row: Row, target: Item, golden: Item, is_torch: bool = False) -> Sentence:
    """A plain argument with another value."""
    return other_value(argument(row, is_torch), target.value, golden.value)


def of_gradient(row: Row, target: Item) -> Sentence:
    """A tensor that takes a gradient on one side only."""
    side = "target" if target.requires_grad else "golden run"
    return Sentence(f"{short_name(row)} takes a gradient in the {side} only")


def of_result(error: float, usual: float) -> str:
    """Sentence on a result of the whole pass that is further apart than tensors before it."""
    return f"what the pass returns has a relative error of {error:.1e}; of tensors before it {usual:.1e} is usual"


def of_rise(error: float, usual: float) -> str:
    """Sentence on a layer from which on the results of many layers are further apart than those before it."""
    return f"median relative error of the layers: {error:.1e} starting here, {usual:.1e} before"


def of_result_behind(error: float) -> str:
    """Clause on values that stay apart up to the end of the pass."""
    return f"values stay apart up to what the pass returns, which has one of {_size(error)}"


def of_layers_behind(error: float) -> str:
    """Clause on values that stay apart in the layers that follow."""
    return f"values stay apart behind it, where layers have one of {_size(error)} in the median"


def of_frontier(row: Row, error: float, usual: float, behind: str) -> str:
    """An output from which on values stay apart; `behind` tells how far up to the end."""
    return f"{short_name(row)} has a relative error of {_size(error)}; before it {_size(usual)} is usual; {behind}"


def of_region(equal: str, between: Sequence[str]) -> str:
    """The region that ends at a call: after a layer with an equal result, and modules whose results tell too little."""
    start = f"everything is equal in every digit up to {equal}" if equal else "nothing before is equal in every digit"
    inside = f"; statistics of this precision do not exclude {', '.join(between)} before it" if between else ""
    return f"{start}{inside}"


def of_first_unequal(row: Row, error: float, rounding: float, roundings: int) -> str:
    """A tensor that is the first one with another statistic, and differs by more than roundings before it make."""
    equal = "everything before it is equal in every digit"
    made = "one rounding makes" if roundings == 1 else f"up to {roundings} roundings between make"
    size = _size(rounding * roundings)
    return f"{short_name(row)} has a relative error of {_size(error)} where {equal}; {made} {size}"


def of_nearly_leaving(row: Row, error: float, usual: float, peers: int) -> str:
    """An output whose relative error is larger than is usual, and no larger than chance may make it."""
    like = f"of {peers} calls like it {_size(usual)} is usual" if peers else f"rounding usually makes {_size(usual)}"
    return f"{short_name(row)} has a relative error of {_size(error)}; {like}, and more by chance"


def of_hidden(size: float, shows_from: float) -> str:
    """Clause on values that agree with a difference of this relative size in them, which would show from another on."""
    known = f"its relative error there is at most {_size(size)}" if size < ALTOGETHER else "its size there is not known"
    agree = "the values computed from it agree, which does not exclude an effect"
    return f"{agree}: {known}, and would show from {_size(shows_from)} on"


def of_not_judged(row: Row, allowed: float) -> str:
    """An output that may differ by as much as that of a fault, because rounding and inputs explain it."""
    explained = f"rounding and its inputs explain a relative error of {_size(allowed)}"
    return f"{short_name(row)} cannot be judged: {explained}, and a fault makes no larger one"


def of_parameter(row: Row, name: str, difference: float) -> Sentence:
    """A parameter that differs."""
    if math.isinf(difference):
        return Sentence(f"parameter {name} has {_not_finite(row)}")
    return beyond_recorded(f"parameter {name}", _size(difference))


def of_input(row: Row, difference: float, allowed: float, called: str | None) -> Sentence:
    """An input that differs by more than is explained, of the record `called` where that is not the one to blame."""
    if math.isinf(difference):
        where = f" where it calls {called}" if called else ""
        return not_finite(short_name(row), _not_finite(row), NOT_RECORDED, where)
    return beyond_recorded(short_name(row), _size(difference), _size(allowed), called or "")


def of_whole_numbers(target: Item, golden: Item) -> str:
    """Other whole numbers or truth values, which no rounding explains; empty of numbers that are rounded."""
    if not all(is_integer(item.dtype or "") or is_boolean(item.dtype or "") for item in (target, golden)):
        return ""
    kinds = "masks" if is_boolean(target.dtype or "") else "token ids, positions or labels"
    return f"the inputs differ: other {kinds}"


def of_explained(inputs: float, outputs: float, before: float | None) -> str:
    """A call that differs by no more than is explained.

    Args:
        inputs, outputs: the largest relative differences.
        before: what calls before it differ by, where it differs by no more than that.
    """
    if math.isinf(max(inputs, outputs)):
        return _of_explained_nonfinite(outputs, before)
    if before is not None:
        return f"it differs by {_size(max(inputs, outputs))} of its size; calls before it differ by {_size(before)}"
    if outputs:
        return f"what it returns differs by {_size(outputs)} of its size, and is not computed from its inputs"
    return f"its inputs differ by {_size(inputs)} of their size; what it returns does not differ"


def _of_explained_nonfinite(outputs: float, before: float | None) -> str:
    if before is not None:
        return f"it has {NONFINITE_ON_ONE_SIDE}, as calls before it"
    if math.isinf(outputs):
        return f"what it returns has {NONFINITE_ON_ONE_SIDE}, and is not computed from its inputs"
    return f"its inputs have {NONFINITE_ON_ONE_SIDE}; what it returns has none"


def of_batch(target: Item, golden: Item) -> str:
    """An input that is a part of the golden batch, as each rank of several has it."""
    mine, theirs = target.shape or (), golden.shape or ()
    if len(mine) != len(theirs) or mine[1:] != theirs[1:] or mine == theirs:
        return ""
    return f"the target has a batch of {mine[0]}, and the golden run one of {theirs[0]}"


def _shape(item: Item) -> str:
    return "none" if item.shape is None else shape_text(item.shape)


def is_repeated(target: Item | None, golden: Item | None) -> bool:
    """True if a tensor of one side holds that of the other side several times, as one for each sample of a batch."""
    if target is None or golden is None or not (target.shape and golden.shape) or target.shape == golden.shape:
        return False
    pairs = list(zip_longest(reversed(target.shape), reversed(golden.shape), fillvalue=1))
    if not any(all(1 in pair[side:] or pair[0] == pair[1] for pair in pairs) for side in (0, 1)):
        return False
    statistics = [(each.max, each.min, each.mean, each.norm) for each in (target, golden)]
    if not all(is_number(value) for each in statistics for value in each):
        return False
    sizes = [math.sqrt(extent(each.shape).elements) for each in (target, golden)]
    largest = max(abs(value) for each in statistics for value in each[:3])
    roundoff = max(unit_roundoff(target.dtype), unit_roundoff(golden.dtype), unit_roundoff("float32"))
    mine, theirs = ((*each[:3], each[3] / size) for each, size in zip(statistics, sizes))
    return all(abs(one - other) <= SAFETY * roundoff * largest for one, other in zip(mine, theirs))


def item_name(row: Row) -> str:
    """The name of the row's item, on whichever side it is."""
    item = row.target or row.golden
    return "" if item is None else item.name


def argument(row: Row, is_torch: bool) -> str:
    """The name of an argument in the signature of the function, as far as it is known."""
    record = row.record if row.target is not None else row.golden_record or row.record
    return argument_name(record, short_name(row)) if is_torch else short_name(row)


def short_name(row: Row) -> str:
    """``input.0`` of an item; of a saved gradient the parameter's name."""
    record = row.record if row.target is not None else row.golden_record or row.record
    return item_name(row)[len(record) + 1 :]


NONFINITE_ON_ONE_SIDE = "a NaN or an infinity on one side only"


def _not_finite(row: Row) -> str:
    """The value of a tensor that is not finite, and its side."""
    sides = (("target", row.target), ("golden run", row.golden))
    found = [(side, item) for side, item in sides if item is not None and (item.has_nan or item.has_inf)]
    if len(found) != 1:
        # The files of the tensors tell more than their statistics do.
        return NONFINITE_ON_ONE_SIDE
    ((side, item),) = found
    return f"{'a NaN' if item.has_nan else 'an infinity'} in the {side} only"


def _size(number: float) -> str:
    if number >= ALTOGETHER:
        return "infinity" if math.isinf(number) else "all"
    return f"{number:.1e}" if number else "0"
