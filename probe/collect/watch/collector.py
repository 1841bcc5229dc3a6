"""The collector of task ``overflow_check``: the same records, kept in memory."""

from __future__ import annotations

from typing import Any, Callable

from probe.collect.active_calls import ActiveCall
from probe.collect.collector import Collector
from probe.collect.record_writer import RecordWriter
from probe.collect.watch.described_once import DescribedOnce
from probe.collect.watch.step_ring import Frame, StepRing
from probe.common.callstack import CallStacks
from probe.common.config.config import Config
from probe.common.interfaces import Entry


class WatchingCollector(Collector):
    """Collects into a `StepRing`."""

    described: DescribedOnce

    def begin_ring(self, step: int) -> StepRing:
        """Collect step number `step` from now on, with all counters at zero."""
        self._reset()
        self.described.begin_step()
        most = max(self._config.records_kept // self._config.every, 1)
        ring = StepRing(step, most, self._tensors, self.described.suspects, self._stacks)
        self._writer.begin_step(ring, self._stacks)  # type: ignore[arg-type]
        self.folder = ring
        return ring

    def _new_writer(self, config: Config) -> RecordWriter:
        return _RingWriter(config, self._tensors, self.failed, self._ended, self._budget)

    def _direct_describer(self) -> Callable[[Any], Entry | None] | None:
        direct = super()._direct_describer()
        self.described = DescribedOnce(self._tensors, self._summary, direct)
        return None if direct is None else self.described.direct

    def _describe_tensor(self, tensor: Any) -> Entry:
        return self.described.describe(tensor)


class _RingWriter(RecordWriter):
    """Puts the records into a `StepRing`; statistics on a device may come later."""

    _ring: StepRing | None = None

    def begin_step(self, folder: Any, stacks: CallStacks) -> None:
        self._ring = folder

    def end_step(self) -> None:
        self._ring = None

    def flush(self) -> bool:
        return False

    def write(self, call: ActiveCall, rule: int) -> None:
        if self._ring is not None:
            self._ring.add(Frame(call.name, call.begun, call.stack, call.parent, call.order, rule, call.fields))

    def write_node(self, call: ActiveCall) -> None:
        if self._ring is not None:
            self._ring.add(Frame(call.name, call.begun, call.stack, call.parent, call.order, None, None))


