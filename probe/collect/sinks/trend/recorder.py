"""The steps of a training that a monitor collects: hooks between them, and what a step gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from probe.backends.protocol import FrameworkAdapter, Measurer, ScaledUpdate, training_of, trends_of
from probe.collect.sinks.trend.course import CommunicationTrends, CourseTrends
from probe.collect.sinks.trend.modules import FeatureTrends, ModuleTrends
from probe.collect.sinks.trend.parameters import ParameterTrends
from probe.collect.sinks.trend.wanted import Wanted, Watched
from probe.common import log
from probe.common.callstack import CallStacks
from probe.common.interfaces import Handle, ModuleName
from probe.common.report.trends import TrendStep, TrendTable

_GROUPS = ("module", "gradient", "optimizer", "parameter", "communication")


Receive = Callable[[TrendStep], None]


class TrendRecorder:
    """Collects the wanted steps of one training.

    Between wanted steps nothing is hooked but the step of the optimizer.

    Args:
        adapter: The framework; of this recorder alone, since it has one listener.
        watched: The models; several of them are the chunks of one. The steps of its optimizer are those of the
            training; without one `step` is called by hand.
        wanted: What is collected.
        wants: True of the number of a step that is collected; asked when it begins.
        collected: Told of the number of each step that was collected.
        receive: Gets each collected step.
        failed: Told of failures of the tool.
        first: The number of the first step.
        micro_batches: The number of micro batches of a step, as the program says; 0 if it says nothing.
        counts_steps: False if `step` is called by hand although there is an optimizer.
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        watched: Watched,
        wanted: Wanted,
        wants: Callable[[int], bool],
        collected: Callable[[int], None],
        receive: Receive,
        failed: Callable[[Any, BaseException], None],
        first: int = 0,
        micro_batches: int = 0,
        counts_steps: bool = True,
    ) -> None:
        trends = trends_of(adapter)
        self.step_number = first
        self._wants, self._collected = wants, collected
        self._receive = receive
        self.failed = failed
        self._micro_batches = micro_batches
        self._is_attached = False
        self._is_before = False
        self._waiting: Optional[tuple[TrendStep, list[Callable[[], None]]]] = None  # noqa: UP045
        self.current: Sequence[TrendTable] = ()
        """The rows of the step that goes on, or of the last one."""
        chunks, optimizer = watched.chunks, watched.optimizer
        # One counter for all steps, which whoever makes rows calls directly.
        order = self._order = itertools.count()
        self._first_row = 0
        self._measurers: dict[str, Measurer] = {
            group: trends.measurer(wanted.ops[group], wanted.eps, wanted.as_msprobe) for group in _GROUPS
        }
        self._modules = ModuleTrends(adapter, wanted, chunks, self._measurers["module"], order, failed)
        self._parameters = ParameterTrends(adapter, wanted, watched, self._measurers, order, failed)
        self._features = FeatureTrends(adapter, wanted, chunks, order, failed)
        self._communication = CommunicationTrends(adapter, wanted, self._measurers["communication"], order, failed)
        self._course = CourseTrends(adapter, wanted, watched, order)
        self._watches_modules = wanted.modules or self._features.watches_modules
        self._features.listen_to(self._modules)
        self._optimizer_handle: Handle | None = None
        self._scaler_handle: Handle | None = None
        if optimizer is not None and counts_steps:
            self._scaler_handle = training_of(adapter).attach_scalers(self._note_scaler)
            self._optimizer_handle = trends.attach_optimizer(optimizer, self.before_step, self.after_step, self)
        self._open()

    # --- steps

    def before_step(self) -> None:
        """The optimizer is about to step."""
        self.deliver()
        if self._is_attached:
            if self._is_before:
                # The step before it raised, and the program goes on: its end was never seen.
                self._features.forget_before()
                self._parameters.forget_before()
            self._is_before = True
            self._check_micro_batches()
            self._features.before()
            self._parameters.before()
            self._course.before()

    def after_step(self) -> None:
        """The optimizer has stepped: the step of the training is over."""
        try:
            if self._is_attached:
                self._end_step()
        finally:
            self._is_before = False
            self.step_number += 1
            self._open()

    def step(self) -> None:
        """The step is over, for who calls it by hand."""
        try:
            self.before_step()
        finally:
            # The steps are counted even if nothing of this one can be collected.
            self.after_step()

    def _end_step(self) -> None:
        if not self._is_before:
            # A step whose beginning was not seen.
            self._parameters.before()
            self._course.before()
        tables = [*self._modules.end_step(), *self._parameters.after(), *self._features.tables()]
        tables += [*self._communication.tables(), *self._course.tables()]
        step = TrendStep(self.step_number, [each for each in tables if each.rows], self.micro_batches, self._first_row)
        self.current = step.tables
        self._collected(self.step_number)
        waiting = [resolve for each in self._measurers.values() if (resolve := each.collect()) is not None]
        directions = self._parameters.directions
        finish = None if directions is None else directions.finisher()
        if waiting:
            self._waiting = step, waiting if finish is None else [*waiting, finish]
        else:
            if finish is not None:
                finish()
            self._receive(step)

    def deliver(self) -> None:
        """Hand on the step whose numbers were on a device when it ended."""
        if self._waiting is None:
            return
        (step, resolves), self._waiting = self._waiting, None
        for resolve in resolves:
            resolve()
        self._receive(step)

    @property
    def micro_batches(self) -> int:
        """The number of micro batches so far in this step: backward passes, or forward passes if only they are seen."""
        return self._parameters.micro_batches or self._modules.passes

    def _check_micro_batches(self) -> None:
        given, seen = self._micro_batches, self.micro_batches
        if given and seen and given != seen:
            text = f"grad_acc_steps is {given}, and step {self.step_number} had {seen} micro batches"
            log.warning(f"{text}; those that were seen are used.", once="monitor micro batches")

    def _note_scaler(self, update: ScaledUpdate) -> None:
        """A gradient scaler passed the optimizer over: what was collected is of no step."""
        try:
            if self._is_attached and self._course.note_scale(update):
                self._begin()
        except Exception as error:
            self.failed("a gradient scaler", error)

    # --- hooks

    def _begin(self) -> None:
        self._first_row = next(self._order) + 1
        self._modules.begin_step()
        self._parameters.begin_step()
        self._features.begin_step()
        self._communication.begin_step()

    def _open(self) -> None:
        """A step begins."""
        if self._wants(self.step_number):
            self._begin()
            if not self._is_attached:
                self._attach()
        elif self._is_attached:
            self._detach()

    def _attach(self) -> None:
        self._is_attached = True
        if self._watches_modules:
            self._modules.attach(self._features.wants_module)
        self._parameters.attach()
        self._communication.attach()

    def _detach(self) -> None:
        self._is_attached = False
        self._modules.detach()
        self._parameters.detach()
        self._communication.detach()

    def close(self) -> None:
        """Put everything back; the step that goes on is given up."""
        if self._is_attached:
            self._detach()
        handle, self._optimizer_handle = self._optimizer_handle, None
        for each in (handle, self._scaler_handle):
            if each is not None:
                each.remove()
        self._scaler_handle = None
        self.deliver()
        if self._course.passed_over:
            # No step was made any more, which a collapsed loss scale does; its last values are worth a row.
            tables = [each for each in self._course.tables() if each.rows]
            self._receive(TrendStep(self.step_number, tables, 0, self._first_row))

    @property
    def has_begun(self) -> bool:
        """True if something of the step that goes on was collected."""
        return self._is_before or any(table.rows for table in (self._modules.forward, self._parameters.unreduced))

    def tables_now(self) -> Sequence[TrendTable]:
        """The rows so far of the step that goes on, or those of the last step that was collected."""
        now = [self._modules.forward, self._modules.backward, self._parameters.unreduced]
        found = [each for each in now if each.rows]
        return found if found else self.current


# --- structure


_FIELDS = {"input": "output_grad", "output": "input_grad"}
"""A listener is told of the gradient of an output as ``input`` of the backward."""


class _Seen:
    __slots__ = ("name", "takers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.takers: dict[str, list[int]] = {"input": [], "output": []}


class StructureRecorder:
    """Implements the part of `probe.common.interfaces.Listener` for modules; of each module the first call is noted.

    Args:
        adapter: The framework; of this recorder alone.
        models: The chunks of the model.
        failed: Told of failures of the tool.
    """

    def __init__(
        self, adapter: FrameworkAdapter, models: Sequence[Any], failed: Callable[[Any, BaseException], None]
    ) -> None:
        self._adapter = adapter
        self.failed = failed
        self._stacks = CallStacks()
        self.structure: dict[str, dict[str, Any]] = {}
        """By chunk and path, the types of values."""
        self.stacks: dict[str, int] = {}
        self._found: dict[str, dict[str, Any]] = {}
        self._handles: list[Handle] = []
        listener: Any = self  # of modules alone
        for at, model in enumerate(models):
            for path, module in trends_of(adapter).modules(model):
                handles = adapter.hooks.attach_module(module, ModuleName(f"{at}:{path}"), listener, parameters=False)
                self._handles += [handles.gradients, handles.forward]

    def finish(self) -> None:
        """The first step is over: take the hooks away."""
        self._adapter.hooks.finish_backward()
        self._adapter.hooks.end_step()
        handles, self._handles = self._handles, []
        for handle in reversed(handles):
            handle.remove()

    def frames(self, name: str) -> list[Any]:
        """The frames from which the module was called, innermost first."""
        return list(self._stacks.frames(self.stacks[name]))

    def enter_module(self, name: ModuleName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Seen | None:
        """A call begins; only the first one of a module is noted."""
        if name.base in self._found:
            return None
        seen = _Seen(name.base)
        self._found[name.base] = {"input": self._described([*args, *kwargs.values()], seen.takers["input"])}
        self.stacks[name.base] = self._stacks.current()
        return seen

    def leave_module(self, call: _Seen, output: Any, parameters: Mapping[str, Any]) -> bool:
        """A module returned."""
        entry = self._found[call.name]
        entry["output"] = self._described(output, call.takers["output"])
        for side in ("input", "output"):
            count = len(entry[side]) - 1
            entry[f"{side}_grad"] = {"config": f"tuple[{count}]", **dict.fromkeys(map(str, range(count)), _NOTHING)}
        # In the order in which calls end: a module comes after those inside of it.
        self.structure[call.name] = entry
        return True

    def fail_module(self, call: _Seen, parameters: Mapping[str, Any]) -> None:
        """A module raised: nothing is known of its output."""

    def enter_backward(self, call: _Seen, outputs: int, inputs: int) -> _Seen:
        """Gradients arrive."""
        return call

    def backward_gradient(self, call: _Seen, field: str, index: int, gradient: Any) -> None:
        """One gradient."""
        side = _FIELDS[field].partition("_")[0]
        takers = call.takers[side]
        at = takers[index] if index < len(takers) else index
        self._found[call.name][_FIELDS[field]][str(at)] = self._text(gradient)

    def leave_backward(self, call: _Seen) -> None:
        """All gradients have arrived."""

    def parameter_gradient(self, module: ModuleName, parameter: str, gradient: Any, owed: bool) -> None:
        """Parameters are no part of it."""

    def _described(self, value: Any, takers: list[int]) -> dict[str, str]:
        is_tensor = self._adapter.tensors.is_tensor
        if is_tensor(value):
            if trends_of(self._adapter).takes_gradient(value):
                takers.append(0)
            return {"config": "tensor", "tensor": self._text(value)}
        if not isinstance(value, (list, tuple)):
            return {"config": str(type(value))}
        for at, each in enumerate(value):
            if is_tensor(each) and trends_of(self._adapter).takes_gradient(each):
                takers.append(at)
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"config": f"{kind}[{len(value)}]", **{str(at): self._text(each) for at, each in enumerate(value)}}

    def _text(self, value: Any) -> str:
        if not self._adapter.tensors.is_tensor(value):
            return str(type(value))
        return f"size={tuple(value.shape)}, dtype={value.dtype}"


_NOTHING = str(type(None))
