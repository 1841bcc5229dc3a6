"""Tells if the other run has a tensor that holds nearly the same numbers, whatever it is called."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent
from probe.compare.verdict.two_runs import TwoRuns

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Nearby:
    """Finds how near the nearest tensor of the golden run is.

    Args:
        runs: the runs; without sketches nothing is near.
    """

    def __init__(self, runs: TwoRuns) -> None:
        self._runs = runs
        self._found: dict[str, float] = {}

    def distance(self, item: Item) -> float:
        """The distance of a tensor of the target to the nearest one of the golden run; infinite if there is none."""
        found = self._found.get(item.name)
        if found is None:
            found = self._found[item.name] = self._distance(item)
        return found

    def _distance(self, item: Item) -> float:
        there = self._golden.get(extent(item.shape).elements)
        if there is None or self._runs.tables is None:
            return math.inf
        import numpy as np

        sketch = self._runs.tables[0].sums([item.name])[0].astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.sqrt(np.square(there - sketch).sum(1))
        size = float(np.linalg.norm(sketch))
        nearest = float(np.nanmin(apart)) if not np.isnan(apart).all() else math.inf
        return nearest / size if size else (0.0 if nearest == 0.0 else math.inf)

    @cached_property
    def _golden(self) -> dict[int, NDArray[Any]]:
        """The sketches of all results of the golden run, by the number of their elements."""
        import numpy as np

        names: dict[int, list[str]] = {}
        for call in self._runs.calls:
            if call.golden_record is None or not call.is_forward:
                continue
            for row in call.rows:
                item = row.golden
                if item is not None and item.is_tensor:
                    names.setdefault(extent(item.shape).elements, []).append(item.name)
        tables = self._runs.tables
        return {} if tables is None else {size: tables[1].sums(of).astype(np.float64) for size, of in names.items()}
