"""The course of a training in plain numbers: hyper-parameters, counters of the optimizer, loss scale, tied weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from probe.backends.protocol import FrameworkAdapter, ScaledUpdate, settings_of, trends_of
from probe.collect.sinks.trend.wanted import Wanted
from probe.collect.sinks.trend.watched import Chunk, Watched
from probe.common.report.trends import COURSE, START, TrendRow, TrendTable

_PAIRS = {"betas": ("beta1", "beta2")}
_NO_SETTINGS = frozenset(("parameters", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"))
"""The size of a group, and numbers that schedulers keep in it."""


class CourseTrends:
    """Rows of one step that are no statistics of tensors; there are none by the rules of msProbe.

    Args:
        adapter: The framework.
        wanted: What is collected.
        watched: The models and the optimizer.
        order: Positions of rows.
    """

    def __init__(self, adapter: FrameworkAdapter, wanted: Wanted, watched: Watched, order: Iterator[int]) -> None:
        self._adapter, self._watched, self._order = adapter, watched, order
        self._is_on = not wanted.as_msprobe and wanted.course
        self._ties: list[tuple[str, int, Callable[[], bool]]] = []
        if self._is_on:
            self._ties = [
                (tie, chunk.number, holds) for chunk in watched.chunks for tie, holds in self._found_ties(chunk)
            ]
        self._scales: list[tuple[float, bool]] = []
        # Replicas begin with equal weights; ranks that hold parts of a model do not.
        self._is_first = self._is_on and not wanted.weights and adapter.rank() is not None
        self._before: list[TrendRow] = []
        self._start: list[TrendTable] = []

    def _found_ties(self, chunk: Chunk) -> list[tuple[str, Callable[[], bool]]]:
        return [(f"tied: {one} = {other}", holds) for one, other, holds in trends_of(self._adapter).ties(chunk.model)]

    def before(self) -> None:
        """The optimizer is about to step."""
        if not self._is_on:
            return
        self._before = [self._row(name, value) for name, value in self._numbers()]
        for name, chunk, holds in self._ties:
            self._before.append(self._row(name, float(holds()), chunk))
        if self._is_first:
            self._is_first = False
            self._start = [self._norms()]

    def note_scale(self, update: ScaledUpdate) -> bool:
        """Keep the loss scale of a step that a gradient scaler let pass, or not; true if not."""
        skipped = update.was_skipped()
        if self._is_on:
            self._scales.append((update.scale(), skipped))
        return skipped

    @property
    def passed_over(self) -> int:
        """The number of steps that a gradient scaler has passed over since the last one that was made."""
        return sum(skipped for _, skipped in self._scales)

    def tables(self) -> list[TrendTable]:
        """The rows of the step."""
        rows, self._before = self._before, []
        if self._scales:
            rows.append(self._row("loss_scale", self._scales[-1][0]))
            rows.append(self._row("loss_scale.skipped_steps", float(self.passed_over)))
            self._scales = []
        start, self._start = self._start, []
        return [*start, TrendTable(COURSE, ("value",), has_shape=False, rows=rows)]

    def _numbers(self) -> Iterator[tuple[str, float]]:
        """Numbers of the groups of the optimizer, and of its state."""
        settings, optimizer = settings_of(self._adapter), self._watched.optimizer
        if optimizer is None:
            return
        groups = () if settings is None else settings.optimizer_groups(optimizer)
        for at, group in enumerate(groups):
            for key, value in group.items():
                if key in _NO_SETTINGS:
                    continue
                values = value if isinstance(value, list) else [value]
                names = _PAIRS.get(key, (key,)) if len(values) <= 2 else ()
                for name, number in zip(names, values):
                    if isinstance(number, (bool, int, float)) and math.isfinite(number):
                        yield f"group{at}.{name}", float(number)
        for name, number in trends_of(self._adapter).state_counts(optimizer).items():
            yield f"state.{name}", number

    def _norms(self) -> TrendTable:
        table = TrendTable(START, ("norm",))
        measurer = trends_of(self._adapter).measurer(("norm",), 0.0)
        for chunk in self._watched.chunks:
            for name, value in chunk.parameters:
                measured = measurer.measure(value)
                if measured is not None:
                    table.rows.append(TrendRow(name, chunk.number, 0, *measured, next(self._order)))
        resolve = measurer.collect()
        if resolve is not None:
            resolve()
        return table

    def _row(self, name: str, value: float, chunk: int = 0) -> TrendRow:
        return TrendRow(name, chunk, 0, [value], "", "", order=next(self._order))
