"""Rows of collective communication, a row for each call."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from probe.backends.protocol import FrameworkAdapter, Measured, Measurer, trends_of
from probe.collect.sinks.trend.wanted import Wanted
from probe.common import clock, log
from probe.common.interfaces import Handle
from probe.common.report.trends import COMMUNICATION, TrendRow, TrendTable

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
