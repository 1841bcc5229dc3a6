"""Types that differ by design: a whole run, or much of it, in another precision than the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain

from probe.common.align.row import Row
from probe.common.numerics.formats import plain_name, unit_roundoff
from probe.compare.divergence.aligned_calls import AlignedCall

TypePair = tuple[str, str]
"""The types of an item of the target and of its match, without what frameworks put before them."""

_SHARE = 0.1
"""The share of floating-point tensors that makes a pair of types a design, as autocast does,"""
_FEWEST = 16
"""and how many these are at least. The pair of most tensors is one in any case."""
_SAMPLED = 512
"""The calls that are asked for their types, about, where only the share counts."""


def pairs_of_types(rows: Iterable[Row]) -> Counter[TypePair]:
    """The number of rows with each pair of types."""
    found: Counter[TypePair] = Counter()
    both = ((row.target, row.golden) for row in rows)
    as_written = Counter(
        (target.dtype or "", golden.dtype or "") for target, golden in both if target is not None and golden is not None
    )
    for (target_type, golden_type), number in as_written.items():
        found[plain_name(target_type), plain_name(golden_type)] += number
    return found


def _floating(types: Counter[TypePair]) -> dict[TypePair, int]:
    return {pair: number for pair, number in types.items() if all(map(unit_roundoff, pair))}


class Precision:
    """Tells types that differ by design from those that differ in one place.

    Args:
        calls: all calls of both runs.
        product_roundoff: the unit roundoff of matrix products, if they are computed with less than their type.
    """

    def __init__(self, calls: Sequence[AlignedCall], product_roundoff: float = 0.0) -> None:
        self._calls = calls
        self._product_roundoff = product_roundoff

    @cached_property
    def design(self) -> frozenset[TypePair]:
        """The pairs of two floating-point types that differ by design."""
        types = pairs_of_types(chain.from_iterable(call.rows for call in self._calls))
        floating = _floating(types)
        # The same one whoever counted: in another order equal counts would be in another one too.
        ordered = sorted(floating, key=lambda pair: (-floating[pair], pair))
        many = max(_FEWEST, _SHARE * sum(floating.values()))
        found = {*ordered[:1], *(pair for pair in ordered if floating[pair] >= many)}
        return frozenset(pair for pair in found if pair[0] != pair[1])

    @cached_property
    def shortest(self) -> float:
        """The unit roundoff of the shortest type that a tenth of the tensors has, on one side at least; 0 of none.

        It is that of matrix products where these have fewer digits.
        """
        return max(self._shortest_type, self._product_roundoff)

    @cached_property
    def _shortest_type(self) -> float:
        # The types of some hundred calls show that as well.
        calls = self._calls[:: 1 + len(self._calls) // _SAMPLED]
        types = pairs_of_types(chain.from_iterable(call.rows for call in calls))
        floating = _floating(types)
        many, found = _SHARE * sum(floating.values()), 0
        by_roundoff = sorted(
            ((max(map(unit_roundoff, pair)), number) for pair, number in floating.items()), reverse=True
        )
        for roundoff, number in by_roundoff:
            found += number
            if found >= many:
                return roundoff
        return 0.0

    @cached_property
    def coarsest(self) -> float:
        """The unit roundoff of the coarsest type of the design; 0 without one."""
        return max(map(unit_roundoff, chain.from_iterable(self.design)), default=0.0)

    def is_by_design(self, target: str | None, golden: str | None) -> bool:
        """True if these two types differ by design."""
        return (plain_name(target or ""), plain_name(golden or "")) in self.design

    def is_loss(self, target: str | None, golden: str | None) -> bool:
        """True if these are two floating-point types that differ in this place: values of the finer are expected."""
        if target == golden or not (unit_roundoff(target) and unit_roundoff(golden)):
            return False
        return unit_roundoff(target) != unit_roundoff(golden) and not self.is_by_design(target, golden)
