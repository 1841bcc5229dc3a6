"""The collector of task ``overflow_check``: the same records, kept in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from probe.collect.active_calls import ActiveCall
from probe.collect.collector import Collector
from probe.collect.record_writer import RecordWriter
from probe.collect.watch.described_once import DescribedOnce
from probe.collect.watch.step_ring import Frame, StepRing
from probe.common.callstack import CallStacks
from probe.common.config.config import Config
from probe.common.interfaces import Entry
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has, writes_in_place


class WatchingCollector(Collector):
    """Collects into a `StepRing`."""

    described: DescribedOnce
    _knows_results = False
    """Whether every call that may write without being counted is seen."""

    def begin_ring(self, step: int, rank: int | None) -> StepRing:
        """Collect step number `step` of process `rank` from now on, with all counters at zero."""
        self._reset()
        self.described.begin_step()
        self._communicating: set[ActiveCall] = set()
        # Communication is not seen at level L0.
        self._knows_results = self._config.level != "L0" or rank is None
        most = max(self._config.records_kept // self._config.every, 1)
        ring = StepRing(step, most, self._tensors, self.described.suspects, self._stacks)
        self._writer.begin_step(ring, self._stacks)  # type: ignore[arg-type]
        self.folder = ring
        return ring

    def leave_all(self) -> None:
        super().leave_all()
        # Behind `stop` nothing is seen, and nobody's tensors are referred to.
        self.described.forget()

    def end_step(self) -> None:
        super().end_step()
        self.described.forget()

    # --- which tensors are known again

    def _enter_api(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if call.api is not None and call.api.returns_arguments:
            self.described.forget()
        super()._enter_api(call, args, kwargs)

    def _leave_api(self, call: ActiveCall, output: Any) -> bool:
        if call.api is not None and call.api.returns_arguments:
            self.described.forget()
        return super()._leave_api(call, output)

    def suspend_api(self, call: ActiveCall) -> None:
        self._communicating.add(call)
        self.described.forget()
        super().suspend_api(call)

    def update_api(self, call: ActiveCall, output: Any) -> None:
        self._communicating.discard(call)
        self.described.forget()
        super().update_api(call, output)

    def fail_api(self, call: ActiveCall) -> None:
        self.described.forget()
        super().fail_api(call)

    def enter_optimizer(self, name: str) -> None:
        self.described.forget()
        super().enter_optimizer(name)

    def leave_optimizer(self, name: str) -> None:
        self.described.forget()
        super().leave_optimizer(name)

    def _describe_output(self, call: ActiveCall, output: Any) -> None:
        if call.api is not None:
            # It has just been written; a module may hand on what was described already.
            self.described.forget_these(output)
        if call.api is None or not _hands_out_memory(call):
            self._expect(output)
        super()._describe_output(call, output)

    def backward_api(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        self._expect(grad_output)
        self._expect(grad_input)
        super().backward_api(call, grad_output, grad_input)

    def _expect(self, values: Any) -> None:
        if self._knows_results and self.collecting and not self.apis_hidden and not self._communicating:
            self.described.expect(values)

    def _new_writer(self, config: Config) -> RecordWriter:
        return _RingWriter(config, self._tensors, self.failed, self._ended, self._budget)

    def _direct_describer(self) -> Callable[[Any], Entry | None] | None:
        direct = super()._direct_describer()
        self.described = DescribedOnce(self._tensors, self._summary, direct)
        return None if direct is None else self.described.direct

    def _describe_tensor(self, tensor: Any) -> Entry:
        return self.described.describe(tensor)


def _hands_out_memory(call: ActiveCall) -> bool:
    """Whether a result of this call may be a buffer, or be filled by what is not seen."""
    assert call.api is not None
    name = call.api.api
    if call.api.returns_arguments or writes_in_place(name):
        return True
    # Kernels fill such memory without that being counted.
    return has(name, Trait.UNWRITTEN, Trait.CONSTANT)


class _RingWriter(RecordWriter):
    """Puts the records into a `StepRing`; statistics on a device may come later."""

    _ring: StepRing | None = None

    def begin_step(self, folder: Any, stacks: CallStacks) -> None:
        self._ring = folder
        self.latest = ""

    def end_step(self) -> None:
        self._ring = None

    def flush(self) -> bool:
        return False

    def write(self, call: ActiveCall, rule: int) -> None:
        self.latest = call.name
        if self._ring is not None:
            self._ring.add(Frame(call.name, call.begun, call.stack, call.parent, call.order, rule, call.fields))

    def write_node(self, call: ActiveCall) -> None:
        if self._ring is not None:
            self._ring.add(Frame(call.name, call.begun, call.stack, call.parent, call.order, None, None))
