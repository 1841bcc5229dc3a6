"""Calls that hand on what other calls returned, and were paired though these are no pair.

Another release transposes queries, keys and values in another order. Its calls have no names of their own, and in two
precisions no equal values tell which of them belong together. What takes their results is judged.
"""

from __future__ import annotations

from functools import cached_property

from probe.common.dump.naming import function_name, is_forward, is_module
from probe.common.dump.reading.records import Item
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import COMPUTING_NOTHING
from probe.common.operations.lookup import has
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.effects import Key, key_of
from probe.compare.divergence.search.items import rounds
from probe.compare.divergence.search.runs import Runs


class Crossed:
    """Finds pairs of calls that hand on results of calls that are no pair.

    Args:
        runs: the runs that are walked.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def has(self, call: AlignedCall) -> bool:
        """True if both calls hand on results, and each of these has another counterpart than the other one."""
        record = call.record or ""
        if is_module(record) or not is_forward(record) or not has(function_name(record), *COMPUTING_NOTHING):
            return False
        if self._runs.precision.shortest <= unit_roundoff("float32"):
            return False
        row = next((row for row in call.rows if is_input(row) and rounds(row)), None)
        if row is None or row.target is None or row.golden is None:
            return False
        mine, theirs = self._maker(row.target, 0), self._maker(row.golden, 1)
        if mine is None or theirs is None or mine is theirs:
            return False
        return all(each.record and each.golden_record for each in (mine, theirs))

    def _maker(self, item: Item, side: int) -> AlignedCall | None:
        return self._makers[side].get(key_of(item))

    @cached_property
    def _makers(self) -> tuple[dict[Key, AlignedCall], dict[Key, AlignedCall]]:
        """The first call that returned a tensor, of both sides, by statistics."""
        found: tuple[dict[Key, AlignedCall], dict[Key, AlignedCall]] = {}, {}
        for call in self._runs.made:
            for row in call.rows if is_forward(call.record or call.golden_record or "") else ():
                for item, made in zip((row.target, row.golden), found):
                    if item is not None and item.is_tensor and not is_input(row):
                        made.setdefault(key_of(item), call)
        return found
