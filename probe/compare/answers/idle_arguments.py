"""Arguments that differ between two calls and decide no value.

Releases of a library say more or less in their calls: the default of a function, or the same under another name. A
module hands its arguments on to calls inside of it. Where these are recorded, they decide.
"""

from __future__ import annotations

from functools import cached_property

from probe.common.align.row import Row
from probe.common.dump.naming import FORWARD, is_module
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import Item
from probe.common.operations.signatures import is_default
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.search.runs import Runs


class IdleArguments:
    """Tells arguments that decide nothing from the others.

    Args:
        runs: the runs.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def has(self, call: AlignedCall, row: Row) -> bool:
        """True if a plain argument of `call` that differs decides no value."""
        if self._is_renamed(call, row):
            return True
        if not is_module(call.record or ""):
            return self._is_default(call, row)
        item = _of_one_side(row)
        # Who does not ask for anything says so, or says nothing.
        is_unasked = item is not None and not item.value
        return is_choice(row) and (is_unasked or self._has_recorded_calls(call))

    def _is_default(self, call: AlignedCall, row: Row) -> bool:
        """True if one side alone says what the function does without it."""
        item = _of_one_side(row)
        if item is None or not self._runs.is_torch:
            return False
        record = (call.record if item is row.target else call.golden_record) or ""
        given = ((each.target if item is row.target else each.golden) for each in call.rows if is_input(each))
        shape = next((each.shape for each in given if each is not None and each.is_tensor and each.shape), None)
        return is_default(record, differences.short_name(row), item.value, shape[-1] if shape else None)

    @staticmethod
    def _is_renamed(call: AlignedCall, row: Row) -> bool:
        """True if the other side has the same value as an argument that this side does not have."""
        item = _of_one_side(row)
        if item is None:
            return False
        for each in call.rows:
            other = _of_one_side(each) if each is not row and is_input(each) else None
            if other is not None and (other is each.target) != (item is row.target):
                if (type(other.value), other.value) == (type(item.value), item.value):
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
                if FORWARD in record and not is_module(record):
                    modules.update(around(tree, record))
        return found


def is_choice(row: Row) -> bool:
    """True if a plain argument is none of degree: a truth value, a text, a whole number."""
    return not any(item is not None and type(item.value) is float for item in (row.target, row.golden))


def _of_one_side(row: Row) -> Item | None:
    """The plain value that one side alone has."""
    present = [item for item in (row.target, row.golden) if item is not None and item.value is not None]
    return present[0] if len(present) == 1 else None
