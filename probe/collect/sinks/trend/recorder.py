"""The steps of a training that a monitor collects: hooks between them, and what a step gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Optional

from probe.backends.protocol import FrameworkAdapter, Measurer, ScaledUpdate, training_of, trends_of
from probe.collect.sinks.trend.communication import CommunicationTrends
from probe.collect.sinks.trend.course import CourseTrends
from probe.collect.sinks.trend.features import FeatureTrends
from probe.collect.sinks.trend.modules import ModuleTrends
from probe.collect.sinks.trend.parameters import ParameterTrends
from probe.collect.sinks.trend.wanted import Wanted
from probe.collect.sinks.trend.watched import Watched
from probe.common import log
from probe.common.interfaces import Handle
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
        if waiting:
            self._waiting = step, waiting
        else:
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
