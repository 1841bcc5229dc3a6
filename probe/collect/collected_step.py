"""The state of one step: what is counted in it, and which sink is handed what."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Callable

from probe.collect.active_calls import ActiveCall, ActiveCalls
from probe.collect.describing.values import SaveTensor
from probe.collect.sinks.sink import Needs, Sink
from probe.common.dump.update_file import UpdateFrame
from probe.common.interfaces import Entry, ModuleName

SinkFailed = Callable[[Sink, Any, BaseException], None]
"""Called with a sink, the call or the name at which it failed, and the error."""


class CollectedStep:
    """One step. A failure of one sink keeps nothing from the others.

    Args:
        needs: The sinks of this step with what they need.
        with_tree: True if calls without fields are handed on for the call tree.
        failed: Told of failures of sinks.
    """

    def __init__(self, needs: Mapping[Sink, Needs], with_tree: bool, failed: SinkFailed) -> None:
        self._with_tree = with_tree
        self._failed = failed
        # Counters, not numbers: two threads that ask at once must not get the same one.
        self.counts: defaultdict[str, Iterator[int]] = defaultdict(count)
        """By API or module, the numbers of further calls."""
        self.gradient_counts: dict[tuple[str, str], int] = {}
        """By module and parameter, how often its gradient was accumulated."""
        self.with_backward: set[str] = set()
        """The modules of which a backward is recorded."""
        self.order = count()
        """The positions of what happens one after the other."""
        self.risk: dict[str, bool] = {}
        """By API, whether it is wanted at the risk level."""
        self.suspended: dict[ActiveCall, None] = {}
        """Wanted calls that work on in the background."""
        self.thread = ActiveCalls()
        self.latest = ""
        """The name of the record that was made last."""
        self.divide(needs)

    def divide(self, needs: Mapping[Sink, Needs]) -> None:
        """Decide once which sinks are handed what, so that nothing is asked of them at each call."""
        self.total = functools.reduce(Needs.__or__, needs.values(), Needs())
        self.with_values = self.total.statistics
        self.with_stacks = self.total.stacks
        self.live = tuple(sink for sink, each in needs.items() if each.calls)
        """Those that get calls as they run; the next ones get their gradients too."""
        self.live_gradients = tuple(sink for sink, each in needs.items() if each.calls and each.gradients)
        recording = [sink for sink, each in needs.items() if each.records]
        recording_backward = [sink for sink in recording if needs[sink].gradients]
        # With the method, which need not be looked up for each record.
        self._updating = tuple(sink for sink, each in needs.items() if each.updates)
        self._recording = tuple((sink, sink.record) for sink in recording)
        """Those that get records; the next ones get those of the backward too."""
        self._recording_backward = tuple((sink, sink.record) for sink in recording_backward)
        self._noting = tuple(recording)
        self._noting_backward = tuple(recording_backward)
        self.records_backward = bool(recording_backward)
        self.saving = tuple(sink for sink, each in needs.items() if each.tensors)

    # --- numbers

    def upcoming(self) -> dict[str, int]:
        """The number that the next call of each name gets."""
        return {base: _upcoming(number) for base, number in list(self.counts.items())}

    def number_from(self, numbers: Mapping[str, int]) -> None:
        """Let further calls have these numbers."""
        self.counts = defaultdict(count, {base: count(number) for base, number in numbers.items()})

    # --- records

    def finish(self, call: ActiveCall, rule: int) -> None:
        """Hand on what there is of a forward call: its record, or else its place in the call tree and its stack."""
        if call.fields:
            self.latest = call.name
            for sink, record in self._recording:
                try:
                    record(call, rule)
                except Exception as error:
                    self._failed(sink, call, error)
        elif self._with_tree or call.stack >= 0:
            self.node(call)

    def finish_backward(self, call: ActiveCall, rule: int) -> None:
        """Hand on what there is of a backward."""
        if call.fields:
            self.latest = call.name
            for sink, record in self._recording_backward:
                try:
                    record(call, rule)
                except Exception as error:
                    self._failed(sink, call, error)
        elif self._with_tree:
            self._hand_on(self._noting_backward, "node", call, call)

    def record(self, call: ActiveCall, rule: int) -> None:
        """Hand on a record that is no call's, whatever its fields are."""
        self.latest = call.name
        self._hand_on(self._noting, "record", call, call, rule)

    def node(self, call: ActiveCall) -> None:
        """Hand on that a call took place, which has no fields."""
        self._hand_on(self._noting, "node", call, call)

    def update(self, update: UpdateFrame) -> None:
        """Hand on a step of an optimizer."""
        self._hand_on(self._updating, "update", "the step of the optimizer", update)

    # --- tensors

    def saver_of(self, call: ActiveCall | None, about: ActiveCall | None = None) -> SaveTensor | None:
        """Function that has each sink save a tensor of `call`, or of a value that belongs to no call.

        Args:
            call: ``None`` for such a value.
            about: The record that is named if a sink fails; by default that of `call`.

        Returns:
            ``None`` if no sink wants the tensors.
        """
        about, savers = about or call, []
        for sink in self.saving:
            try:
                saver = sink.saver_of(call)
            except Exception as error:
                self._failed(sink, about, error)
            else:
                if saver is not None:
                    savers.append((sink, saver))
        if not savers:
            return None

        def save(value: Any, entry: Entry, path: str) -> None:
            for sink, saver in savers:
                try:
                    saver(value, entry, path)
                except Exception as error:
                    self._failed(sink, about, error)

        return save

    def returned(self, call: ActiveCall) -> None:
        """The record of the forward of a wanted call is complete."""
        self._hand_on(self.saving, "returned", call, call)

    def decide(self, call: ActiveCall, wanted: bool) -> None:
        """It is known now whether a backward is `wanted`."""
        if not wanted:
            call.fields.clear()
        self._hand_on(self.saving, "decide", call, call, wanted)

    # --- live calls

    def enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._hand_on(self.live, "enter", call, call, args, kwargs)

    def leave(self, call: ActiveCall, output: Any) -> bool:
        """Hand on a result; whether a sink wants the backward."""
        return self._hand_on(self.live, "leave", call, call, output)

    def withdraw(self, call: ActiveCall) -> None:
        if call.wanted:
            self._hand_on(self.live, "withdraw", call, call)

    def backward(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        self._hand_on(self.live_gradients, "backward", call, call, grad_output, grad_input)

    def gradient(self, call: ActiveCall, field: str, index: int, gradient: Any) -> None:
        self._hand_on(self.live_gradients, "gradient", call, call, field, index, gradient)

    def parameter_gradient(self, module: ModuleName, parameter: str, gradient: Any) -> None:
        about = f"{module.base}.{parameter}"
        self._hand_on(self.live_gradients, "parameter_gradient", about, module, parameter, gradient)

    def _hand_on(self, sinks: tuple[Sink, ...], method: str, about: Any, *args: Any) -> bool:
        """Call a method of each of `sinks`; whether one of them answered true. `about` is told where one fails."""
        answer = False
        for sink in sinks:
            try:
                answer |= bool(getattr(sink, method)(*args))
            except Exception as error:
                self._failed(sink, about, error)
        return answer


def _upcoming(number: Iterator[int]) -> int:
    # To take the next one and put it back would leave a gap for another thread; a counter says it only as a text.
    return int(repr(number)[len("count(") : -1])
