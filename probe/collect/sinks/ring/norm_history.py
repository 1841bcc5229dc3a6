"""The rarity of a gradient norm among those before it."""

from __future__ import annotations

from collections import deque
from statistics import median

_REMEMBERED = 64
_NEEDED = 16
_DEVIATION_OF_MEDIAN = 1.4826
"""The standard deviation of normally distributed values, as a multiple of their median absolute deviation."""
_LEAST_SPREAD = 0.01
"""The part of the median that the deviation is taken for at least: values that hardly differ have no outliers."""


class NormHistory:
    """The last values; a single large one changes neither their median nor their median deviation."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_REMEMBERED)

    def score(self, value: float) -> float | None:
        """By how many deviations `value` is above the median; ``None`` while too few values are known.

        `value` is one of those before the next one from then on.
        """
        score = self._score(value) if len(self._values) >= _NEEDED else None
        self._values.append(value)
        return score

    def _score(self, value: float) -> float:
        middle = median(self._values)
        deviation = _DEVIATION_OF_MEDIAN * median(abs(each - middle) for each in self._values)
        spread = max(deviation, _LEAST_SPREAD * abs(middle))
        if spread > 0:
            return (value - middle) / spread
        return float("inf") if value > middle else 0.0
