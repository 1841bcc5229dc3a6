"""The recorder of the updates of optimizers: settings of the groups, and the change of each parameter.

The gradient is described as the optimizer takes it, the parameter before and after; the update's sketch is the
difference of the last two, since a sketch is linear, and no copy of a parameter is made. What is on a device waits for
its statistics as records do.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from probe.backends.protocol import FrameworkAdapter, OptimizedParameter, settings_of
from probe.backends.protocol.training import OptimizedParameters
from probe.collect.collector import Collector
from probe.common.callstack import OWN_FILES
from probe.common.containers import by_prefix
from probe.common.dump.update_file import UpdateFrame, UpdateRow
from probe.common.environment.gathered import clean_settings
from probe.common.interfaces import Entry, Handle, StatisticsMode

_MODE = StatisticsMode(high_precision=True, sketch=True)
_NUMBER = StatisticsMode()


class _Begun(NamedTuple):
    """An update that has begun."""

    optimizer: Any
    parameters: OptimizedParameters
    groups: list[dict[str, Any]]
    taken: list[tuple[OptimizedParameter, Entry, Entry | None]]
    """The parameters that may be updated, with their entries and those of their gradients, if these are known."""
    caller: FrameType | None
    """The frame of the program that runs the step, or calls it."""


class UpdateRecorder:
    """Records the updates of one session, between its `start` and the end of the step.

    Args:
        adapter: The framework.
        collector: Gets the updates for the sinks of its step.
    """

    def __init__(self, adapter: FrameworkAdapter, collector: Collector) -> None:
        self._adapter = adapter
        self._collector = collector
        self._unobserved = adapter.hooks.unobserved
        self._describe_any = adapter.tensors.describe_tensor
        try:
            self._direct = adapter.tensors.direct_describer(_MODE)
        except Exception as error:
            self._direct = None
            collector.failed("the faster way to describe tensors", error)
        self._handle: Handle | None = None
        self._models: dict[str, weakref.ref[Any]] = {}
        self._names: dict[int, str] | None = None
        """The names of the parameters of the models, by identity; ``None`` until they are needed in this step."""
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """The optimizers, numbered in the order of their first updates."""
        self._settings: weakref.WeakKeyDictionary[Any, tuple[list[Any], list[dict[str, Any]]]]
        self._settings = weakref.WeakKeyDictionary()
        """The settings of optimizers as they were read last, and without those that may be secrets."""
        self._begun: dict[int, _Begun] = {}
        self._scaled: dict[int, Any] = {}
        """Optimizers that a gradient scaler may let step, and that have not begun to."""

    # --- a step

    def attach(self, models: Any) -> None:
        """Record from now on; `models` give their names to the parameters."""
        step, settings = self._collector.step, self._adapter.settings
        if settings is None or step is None or not step.updating:
            return
        self.note_models(models)
        if self._handle is None:
            before, after, scaled = (
                partial(self._collector.attempt, self._unobserved, report)
                for report in (self._enter, self._leave, self._pass_scaler)
            )
            self._handle = settings.attach_updates(before, after, scaled)

    def note_models(self, models: Any) -> None:
        """Take the names of parameters from `models`, which are given as to `start`."""
        given = {prefix: model for prefix, model in by_prefix(models).items() if model is not None}
        self._models.update((prefix, weakref.ref(model)) for prefix, model in given.items())
        self._names = None

    def finish(self) -> None:
        """Record what is not recorded yet: a step may be ended by a hook on the optimizer itself.

        An optimizer whose step has raised is not running any more, and has made no update.
        """
        running = set(map(id, _frames(sys._getframe())))
        for begun in [each for each in self._begun.values() if id(each.caller) in running]:
            self._unobserved(self._leave, begun.optimizer, begun.parameters, None)
        for optimizer in list(self._scaled.values()):
            self._unobserved(self._skip, optimizer)

    def detach(self) -> None:
        """Record no more."""
        self._begun, self._scaled, self._names = {}, {}, None
        if self._handle is not None:
            # Forgotten last: what could not be removed is removed with the next step.
            self._handle.remove()
            self._handle = None

    # --- around an update

    def _pass_scaler(self, optimizer: Any, begins: bool) -> None:
        if begins:
            self._scaled[id(optimizer)] = optimizer
        elif id(optimizer) in self._scaled:
            self._skip(optimizer)

    def _enter(self, optimizer: Any, parameters: OptimizedParameters) -> None:
        self._scaled.pop(id(optimizer), None)
        if self._collector.step is None:
            return
        present = parameters()
        # Before a closure no gradient is known, and any parameter may be updated.
        are_known = any(each.gradient is not None for each in present)
        taken = [
            (each, self._describe(each.value), None if each.gradient is None else self._describe(each.gradient))
            for each in present
            if each.gradient is not None or not are_known
        ]
        caller = next(
            (frame for frame in _frames(sys._getframe()) if not frame.f_code.co_filename.startswith(OWN_FILES)), None
        )
        self._begun[id(optimizer)] = _Begun(optimizer, parameters, self._groups(optimizer), taken, caller)

    def _leave(self, optimizer: Any, parameters: OptimizedParameters, found_inf: Any) -> None:
        begun = self._begun.pop(id(optimizer), None)
        step = self._collector.step
        if begun is None or step is None:
            return
        now = {id(each.value): each for each in parameters()}
        counts: dict[int, Any] = {}
        rows: list[UpdateRow] = []
        for each, before, gradient in begun.taken:
            after = now.get(id(each.value), each)
            if gradient is None:
                if after.gradient is None:
                    continue
                gradient = self._describe(after.gradient)
            rows.append(
                UpdateRow(
                    self._name(each),
                    each.group,
                    self._count(after.state_step, counts),
                    gradient,
                    before,
                    self._describe(each.value),
                )
            )
        skipped = False if found_inf is None else self._number(found_inf)
        step.update(UpdateFrame(type(optimizer).__name__, self._index(optimizer), begun.groups, skipped, rows))

    def _skip(self, optimizer: Any) -> None:
        """A gradient scaler has not let `optimizer` step."""
        del self._scaled[id(optimizer)]
        step = self._collector.step
        if step is not None:
            name, index = type(optimizer).__name__, self._index(optimizer)
            step.update(UpdateFrame(name, index, self._groups(optimizer), True, []))

    # --- its parts

    def _describe(self, tensor: Any) -> Entry:
        found = None if self._direct is None else self._direct(tensor)
        return self._describe_any(tensor, _MODE) if found is None else found

    def _groups(self, optimizer: Any) -> list[dict[str, Any]]:
        """The settings of the groups, which seldom change from one step to the next."""
        groups = list(settings_of(self._adapter).optimizer_groups(optimizer))
        known = self._settings.get(optimizer)
        if known is None or known[0] != groups:
            known = self._settings[optimizer] = groups, [clean_settings(group)[0] for group in groups]
        return known[1]

    def _index(self, optimizer: Any) -> int:
        return self._numbers.setdefault(optimizer, len(self._numbers))

    def _count(self, count: Any, known: dict[int, Any]) -> Any:
        """A count of steps: a number, or the entry of a tensor, which several parameters may share."""
        if not self._adapter.tensors.is_tensor(count):
            return count if isinstance(count, (int, float)) else None
        if id(count) not in known:
            known[id(count)] = self._number(count)
        return known[id(count)]

    def _number(self, tensor: Any) -> Entry:
        """The entry of a tensor of one element."""
        return self._describe_any(tensor, _NUMBER)

    def _name(self, parameter: OptimizedParameter) -> str:
        if self._names is None:
            self._names = {}
            for prefix, model in self._models.items():
                for name, value in settings_of(self._adapter).weights(model()) if model() is not None else ():
                    self._names.setdefault(id(value), f"{prefix}.{name}" if prefix else name)
        return self._names.get(id(parameter.value)) or parameter.name


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that it was called from, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back
