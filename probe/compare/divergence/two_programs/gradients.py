"""The effect of a difference in the backward pass, which the gradients of the next parameters tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from probe.common.align.row import Row
from probe.common.dump.naming import PARAMETERS_GRAD
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.same_values import Contents
from probe.compare.divergence.two_programs.following import Effect, Hidden, Outcome, most_seen, together
from probe.compare.divergence.two_programs.held_values import COARSE, TARGET, error_of, least_shown

_NEXT = 3
"""The number of parameter gradients behind a backward that tell what it handed on."""


class Gradients:
    """The gradients of the parameters of two programs.

    Args:
        rows: all rows of the comparison.
        positions: the places of the records of target and golden side in the orders of their sides.
        shows_from: the relative difference that the statistics of tensors which agree may have.
    """

    def __init__(
        self, rows: Sequence[Row], positions: tuple[Mapping[str, int], Mapping[str, int]], shows_from: float
    ) -> None:
        self._rows = [row for row in rows if row.golden is not None and PARAMETERS_GRAD in row.record]
        self._golden = Contents((row.golden for row in self._rows if row.golden is not None), shows_from)
        self._positions = positions
        self._shows_from = shows_from

    def effect(self, call: AlignedCall, size: float) -> Effect:
        """The effect of a gradient, told by those of the next parameters, which it would reach."""
        position = self._positions[TARGET].get(call.record or "", math.inf)
        outcomes: list[Outcome] = []
        hidden: list[Hidden] = []
        for row in self._rows:
            # A gradient that the golden run alone has is at no position of the target.
            if row.target is None or self._positions[TARGET][row.record] <= position:
                continue
            elsewhere = self._golden.has(row.target)
            if elsewhere is None:
                continue
            if not elsewhere:
                return Effect(Outcome.PARTS)
            shows_from = least_shown(row.target, self._shows_from)
            outcomes.append(Outcome.AGREES if size > shows_from else Outcome.HIDDEN)
            hidden += [] if size > shows_from else [Hidden(size, shows_from)]
            if len(outcomes) == _NEXT:
                break
        return Effect(together(outcomes), most_seen(hidden))

    def apart_behind(self, record: str, side: int) -> float | None:
        """The amount by which the gradients of the next parameters behind one differ, if they agree.

        ``None`` if they do not agree, or if there are none.
        """
        position = self._positions[side].get(record, math.inf)
        found: list[float] = []
        for row in self._rows:
            name = (row.record, row.golden_record or "")[side]
            if row.target is None or self._positions[side].get(name, -1) <= position:
                continue
            if self._golden.has(row.target) is False:
                return None
            nearest = self._golden.nearest(row.target) if self._shows_from > COARSE else None
            error = None if nearest is None else error_of(row.target, nearest)
            found.append(self._shows_from if error is None else error)
            if len(found) == _NEXT:
                break
        return max(found, default=None)
