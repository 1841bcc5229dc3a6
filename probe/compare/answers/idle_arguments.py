"""Arguments that differ between two calls and decide no value.

Releases of a library say more or less in their calls: the default of a function, or the same under another name. A
module hands its arguments on to calls inside of it. Where these are recorded, they decide.
"""

from __future__ import annotations

from functools import cached_property

from probe.common.align.row import Row
from probe.common.dump.naming import function_name, is_forward, is_module
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import Item
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has
from probe.common.operations.signatures import OF_DIMENSIONS, is_default
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.search.items import rounds
from probe.compare.divergence.search.runs import Runs


class IdleArguments:
    """Tells arguments that decide nothing from the others.

    Args:
        runs: the runs.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def has(self, call: AlignedCall, row: Row) -> bool:
        """True if an argument of `call` that differs decides no value."""
        if self._is_renamed(call, row):
            return True
        if not is_module(call.record or ""):
            return self._is_default(call, row) or self._is_same_dimension(call, row)
        item = _of_one_side(row)
        # Who does not ask for anything says so, or says nothing.
        is_unasked = item is not None and not item.value
        return is_choice(call, row) and (is_unasked or self._has_recorded_calls(call))

    def _is_default(self, call: AlignedCall, row: Row) -> bool:
        """True if one side alone says what the function does without it."""
        item = _of_one_side(row)
        if item is None or not self._runs.is_torch:
            return False
        record = (call.record if item is row.target else call.golden_record) or ""
        shape = _shape_given(call, int(item is row.golden))
        return is_default(record, differences.short_name(row), item.value, shape[-1] if shape else None)

    def _is_same_dimension(self, call: AlignedCall, row: Row) -> bool:
        """True if both sides mean one dimension, and count it from both ends."""
        name = differences.argument(row, self._runs.is_torch)
        if name not in OF_DIMENSIONS or row.target is None or row.golden is None or not self._runs.is_torch:
            return False
        values, shapes = (row.target.value, row.golden.value), (_shape_given(call, 0), _shape_given(call, 1))
        if None in shapes or not all(type(value) is int for value in values):
            return False
        added = int(has(function_name(call.record or ""), Trait.ADDS_A_DIMENSION))
        dimensions = [value % (len(shape or ()) + added or 1) for value, shape in zip(values, shapes)]
        return len(shapes[0] or ()) == len(shapes[1] or ()) and dimensions[0] == dimensions[1]

    def _is_renamed(self, call: AlignedCall, row: Row) -> bool:
        """True if the other side has the same value as an argument that this side does not have.

        Of a function of PyTorch with a known signature it has to be the same argument, given by its name on one side
        alone. Two truth values of a module are equal too often.
        """
        item = _of_one_side(row)
        of_module = is_module(call.record or "")
        if item is None or (of_module and isinstance(item.value, bool)):
            return False
        name = differences.argument(row, self._runs.is_torch)
        has_names = self._runs.is_torch and not of_module and name.isidentifier()
        own = type(item.value), item.value
        for each in call.rows:
            other = _of_one_side(each) if each is not row and is_input(each) else None
            other_name = differences.argument(each, True)
            if has_names and other_name.isidentifier() and other_name != name:
                continue
            is_of_other_side = other is not None and (other is each.target) != (item is row.target)
            if other is not None and is_of_other_side and (type(other.value), other.value) == own:
                return True
        return False

    def _has_recorded_calls(self, call: AlignedCall) -> bool:
        """True if calls of functions that a module makes are recorded, on both sides."""
        return call.record in self._modules[0] and call.golden_record in self._modules[1]

    @cached_property
    def _modules(self) -> tuple[set[str], set[str]]:
        """The modules of both sides with a recorded call of a function inside."""
        found: tuple[set[str], set[str]] = set(), set()
        for modules, tree in zip(found, (self._runs.tree, self._runs.golden_tree)):
            for record in tree:
                if is_forward(record) and not is_module(record):
                    modules.update(around(tree, record))
        return found


def is_choice(call: AlignedCall, row: Row) -> bool:
    """True if an argument says which way to go, and not how much of something.

    That is one of a module which is no floating-point number: a truth value, a text, a mask on one side only. And what
    a call takes that computes with whole numbers, such as positions.
    """
    if is_module(call.record or ""):
        return not any(item is not None and type(item.value) is float for item in (row.target, row.golden))
    return not any(rounds(each) for each in call.rows)


def _shape_given(call: AlignedCall, side: int) -> tuple[int, ...] | None:
    """The shape of the first tensor that a call takes on one side."""
    items = ((row.target, row.golden)[side] for row in call.rows if is_input(row))
    return next((tuple(each.shape) for each in items if each is not None and each.is_tensor and each.shape), None)


def _of_one_side(row: Row) -> Item | None:
    """The plain value that one side alone has."""
    present = [item for item in (row.target, row.golden) if item is not None and item.value is not None]
    return present[0] if len(present) == 1 else None
