"""The course of a training in plain numbers: hyper-parameters, counters of the optimizer, loss scale, tied weights."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from probe.backends.protocol import FrameworkAdapter, Measured, Measurer, ScaledUpdate, settings_of, trends_of
from probe.collect.sinks.trend.wanted import Chunk, Wanted, Watched
from probe.common import clock, log
from probe.common.interfaces import Handle
from probe.common.report.trends import COMMUNICATION, COURSE, START, TrendRow, TrendTable

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


# --- communication


_MORE = ("call", "direction", "group", "peer", "bytes", "seconds", "code")


class _Entered(NamedTuple):
    name: str
    number: int
    begun: float
    more: tuple[str, ...]


class CommunicationTrends:
    """Implements `probe.backends.protocol.trends.CommunicationListener`; for the arguments see `ParameterTrends`."""

    def __init__(
        self,
        adapter: FrameworkAdapter,
        wanted: Wanted,
        measurer: Measurer,
        order: Iterator[int],
        failed: Callable[[Any, BaseException], None],
    ) -> None:
        self._trends, self._wanted, self._measurer, self._order = trends_of(adapter), wanted, measurer, order
        self.failed = failed
        self._handle: Handle | None = None
        self.places: dict[str, list[list[str]]] = {}
        """By operation, the call stacks that were seen, for ``cc_log_only``."""
        self._is_logged = False
        self.begin_step()

    def begin_step(self) -> None:
        """Forget the step before."""
        self._table = TrendTable(COMMUNICATION, self._wanted.ops["communication"], more=_MORE)
        self._counts: dict[str, int] = {}

    def attach(self) -> None:
        """See calls from now on."""
        if self._wanted.communication is not None:
            self._handle = self._trends.attach_communication(self, self)

    def detach(self) -> None:
        """See no more calls."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def tables(self) -> list[TrendTable]:
        """The rows of the step."""
        if self.places:
            self._log_places()
        return [self._table]

    def _log_places(self) -> None:
        """Say once where the program communicates, for ``cc_log_only``."""
        places, self.places = self.places, {}
        if not self._is_logged:
            self._is_logged = True
            log.info(f"cc_log_only: the communication of a step: {json.dumps(places)}")

    def enter_communication(self, name: str, tensors: Sequence[Any], about: Mapping[str, Any]) -> _Entered | None:
        """A collective begins."""
        wanted = self._wanted.communication
        assert wanted is not None
        frames = _frames()
        if wanted.log_only:
            stacks = self.places.setdefault(name, [])
            if frames not in stacks:
                stacks.append(frames)
            return None
        if wanted.lines and not any(frame.split(" ")[0] in wanted.lines for frame in frames):
            return None
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        peer = "" if about.get("peer") is None else str(about["peer"])
        code = frames[0] if frames else ""
        entered = _Entered(name, number, clock.monotonic(), (str(about.get("group", "")), peer, code))
        if wanted.inputs:
            self._add(entered, "pre", tensors, 0.0)
        return entered

    def leave_communication(self, entered: _Entered | None, tensors: Sequence[Any]) -> None:
        """A call of communication has returned."""
        if entered is not None:
            self._add(entered, "post", tensors, clock.monotonic() - entered.begun)

    def _add(self, entered: _Entered, direction: str, tensors: Sequence[Any], seconds: float) -> None:
        group, peer, code = entered.more
        for index, tensor in enumerate(tensors):
            measured: Measured | None = self._measurer.measure(tensor)
            if measured is None:
                continue
            size = str(measured.elements * getattr(getattr(tensor, "dtype", None), "itemsize", 0))
            more = (str(entered.number), direction, group, peer, size, f"{seconds:.6f}", code)
            name = f"{entered.name}.{index}" if index else entered.name
            self._table.rows.append(TrendRow(name, 0, 0, *measured, next(self._order), more))


def _frames() -> list[str]:
    """The program's frames, innermost first, as ``train.py[10] function``."""
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None:
        code, path = frame.f_code, frame.f_code.co_filename
        parts = path.split(os.sep)
        if "probe" not in parts and "torch" not in parts and "mindspore" not in parts:
            found.append(f"{os.path.basename(path)}[{frame.f_lineno}] {code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return found
