"""Gradients of one number, such as that of the factor of all logits, in which terms cancel.

Two programs sum other products: the gradient of a factor in front of a product has the terms of one behind it in other
sums. The terms are products of gradients and of what the factor multiplies. Errors of single terms add up in squares,
so that the size of all terms is the norm of the gradient times that of the other factor, by the root of their number.
"""

from __future__ import annotations

import math
from functools import cached_property

from probe.common.align.row import Row
from probe.common.dump.naming import FORWARD, is_backward, parse
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.effects import Key, key_of
from probe.compare.divergence.search.items import in_direction
from probe.compare.divergence.search.runs import Runs


class ScalarGradients:
    """Knows the calls that gradients of one number come from.

    Args:
        runs: the runs, of two programs or of one.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def terms_of(self, row: Row) -> float:
        """The size of the terms of a gradient of one number in two programs, relative to it; 1 of anything else."""
        if self._runs.regions is None or row.target is None or extent(row.target.shape).elements != 1:
            return 1.0
        return max(1.0, *(self._of_side(item, side) for side, item in enumerate((row.target, row.golden))))

    def _of_side(self, item: Item | None, side: int) -> float:
        record = None if item is None else self._backwards[side].get(key_of(item))
        parsed = parse(record or "")
        if item is None or not item.norm or record is None or parsed is None:
            return 1.0
        gradient, factor = self._largest(record, side), self._largest(in_direction(parsed, FORWARD), side)
        terms = max(1, gradient[1])
        return gradient[0] * factor[0] / math.sqrt(terms) / float(item.norm)

    @cached_property
    def _backwards(self) -> tuple[dict[Key, str], dict[Key, str]]:
        """The backward calls of both sides by what they return."""
        found: tuple[dict[Key, str], dict[Key, str]] = {}, {}
        for call in self._runs.made:
            for side, (record, by_item) in enumerate(zip((call.record, call.golden_record), found)):
                for row in call.rows if record is not None and is_backward(record) else ():
                    item = (row.target, row.golden)[side]
                    if record is not None and item is not None and not is_input(row):
                        by_item.setdefault(key_of(item), record)
        return found

    @cached_property
    def _by_record(self) -> tuple[dict[str, AlignedCall], dict[str, AlignedCall]]:
        found: tuple[dict[str, AlignedCall], dict[str, AlignedCall]] = {}, {}
        for call in self._runs.made:
            for record, calls in zip((call.record, call.golden_record), found):
                if record is not None:
                    calls[record] = call
        return found

    def _largest(self, record: str, side: int) -> tuple[float, int]:
        """The norm and the number of elements of the tensor with the largest norm that a call takes; 0 without one."""
        call = self._by_record[side].get(record)
        sizes = [(0.0, 0)]
        for row in call.rows if call is not None else ():
            item = (row.target, row.golden)[side] if is_input(row) else None
            if item is not None and item.is_tensor and type(item.norm) is float and math.isfinite(item.norm):
                sizes.append((item.norm, extent(item.shape).elements))
        return max(sizes)
