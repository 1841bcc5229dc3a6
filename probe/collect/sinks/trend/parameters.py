"""Gradients, moments and weights of parameters, as rows."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

from probe.backends.protocol import FrameworkAdapter, Measured, Measurer, trends_of
from probe.collect.sinks.trend.directions import Gradient, GradientDirections
from probe.collect.sinks.trend.wanted import Wanted, WantedSignatures, Watched
from probe.common import log
from probe.common.interfaces import Handle
from probe.common.report.trends import (
    AFTER,
    BEFORE,
    CHECKSUM,
    DIRECTION,
    FROZEN,
    REDUCED,
    SIGN,
    UNREDUCED,
    UPDATE,
    TrendRow,
    TrendTable,
)

MOMENTS = ("exp_avg", "exp_avg_sq")
_UPDATE_OPS = ("update_norm", "weight_norm", "ratio")
_NO_NAME = re.compile(r"\W+")
_new: Any = tuple.__new__
"""Makes a named tuple without the function of Python that is its constructor."""


class Parameter:
    """One parameter with its names; it is not kept alive."""

    __slots__ = ("_value", "chunk", "name", "placement", "whole")

    def __init__(self, name: str, chunk: int, value: Any, whole: str, placement: str) -> None:
        self.name = name
        self.chunk = chunk
        self._value = weakref.ref(value)
        self.placement = placement
        self.whole = whole

    @property
    def value(self) -> Any:
        """The parameter itself; ``None`` if the program has deleted it."""
        return self._value()


class ParameterTrends:
    """Rows of the parameters of one step.

    Args:
        adapter: The framework.
        wanted: What is collected.
        watched: The models, and the optimizer whose states are read.
        measurers: Statistics by group: ``gradient``, ``optimizer``, ``parameter``.
        order: Positions of rows.
        failed: Told of failures of the tool.
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        wanted: Wanted,
        watched: Watched,
        measurers: dict[str, Measurer],
        order: Iterator[int],
        failed: Callable[[Any, BaseException], None],
    ) -> None:
        self._trends, self._wanted, self._watched = trends_of(adapter), wanted, watched
        self._measurers = measurers
        self._order = order
        self.failed = failed
        self._all = [
            Parameter(name, chunk.number, each, *self._trends.whole(each))
            for chunk in watched.chunks
            for name, each in chunk.parameters
            if wanted.is_parameter(name)
        ]
        self._parameters: list[Parameter] = []
        """The parameters that are trained now."""
        self._attached = self._parameters
        """The parameters that report gradients, by the index with which they do."""
        self._is_attached = False
        """True between `attach` and `detach`, also while every parameter is frozen and there is no hook."""
        self._flags: list[bool] | None = None
        self._frozen: list[Parameter] = []
        """The parameters that were trained in the step before and are not any more."""
        sharded = any(each.placement for each in self._all)
        self._more = ("placement",) if sharded and not wanted.as_msprobe else ()
        self._reduces = wanted.unreduced_always or any(map(self._trends.reduces, self._models))
        self._writes_reduced = all(self._trends.is_first(group) for group in wanted.first_of)
        self._handles: list[Handle] = []
        self._expected: Optional[int] = None  # noqa: UP045
        """The number of micro batches, as far as it is known."""
        self.directions = GradientDirections(measurers["gradient"], order) if wanted.gradient_sketches else None
        self.begin_step()

    # --- the life of a step

    def begin_step(self) -> None:
        """Forget the step before."""
        self._follow()
        if self._is_attached and self._attached is not self._parameters:
            self.detach()
            self.attach()
        self._counts = [0] * len(self._attached)
        self._last: dict[int, TrendRow] = {}
        self._tables: list[TrendTable] = []
        self._copies: list[Any] = []
        self.unreduced = TrendTable(
            UNREDUCED, self._wanted.ops["gradient"], self._wanted.each_micro_batch, more=self._more
        )

    def attach(self) -> None:
        """Have gradients reported when they are ready."""
        self._is_attached = True
        self._attached = self._parameters
        self._counts = [0] * len(self._attached)
        if self._wanted.gradients and self._reduces and self._parameters:
            values = [each.value for each in self._parameters]
            self._handles.append(self._trends.attach_gradients(self._models, values, self._ready, self))

    def detach(self) -> None:
        """Take every hook away."""
        self._is_attached = False
        handles, self._handles = self._handles, []
        for handle in handles:
            try:
                handle.remove()
            except Exception as error:
                self.failed("a hook of the monitor", error)

    @property
    def _models(self) -> list[Any]:
        return [model for chunk in self._watched.chunks if (model := chunk.model) is not None]

    @property
    def micro_batches(self) -> int:
        """The backward passes of this step, as far as hooks on gradients tell; 0 without them."""
        return max(self._counts, default=0)

    def _follow(self) -> None:
        """See which parameters are trained: a program may freeze layers, or thaw them one after the other."""
        values = [each.value for each in self._all]
        if self._flags is not None and self._wanted.as_msprobe:
            flags = [was and value is not None for was, value in zip(self._flags, values)]
        else:
            is_frozen = self._trends.is_frozen
            flags = [value is not None and not is_frozen(value) for value in values]
        if flags == self._flags:
            return
        before, is_first, self._flags = self._flags or [False] * len(flags), self._flags is None, flags
        self._parameters = [each for each, is_trained in zip(self._all, flags) if is_trained]
        stopped = [each for each, was, is_trained in zip(self._all, before, flags) if was and not is_trained]
        gone = [each for each in stopped if each.value is not None]
        new = [each for each, was, is_trained in zip(self._all, before, flags) if is_trained and not was]
        thawed = set(map(id, new))
        self._frozen = [each for each in self._frozen if id(each) not in thawed] + gone
        for each, what in ((gone, "frozen by now, and have no rows"), (new, "trained by now, and have rows")):
            if each and not is_first:
                log.info(f"monitor: {len(each)} parameters are {what} from now on, such as {each[0].name}.")

    # --- gradients as they become ready

    def _ready(self, index: int, gradient: Any) -> None:
        micro = self._counts[index]
        self._counts[index] = micro + 1
        each = self._wanted.each_micro_batch
        if not each and self._expected is not None and micro + 1 < self._expected:
            return
        parameter = self._attached[index]
        if self._wanted.main_gradients:
            gradient = self._main(parameter, gradient)
        measured = self._measurers["gradient"].measure(gradient)
        if measured is None:
            return
        more = ("",) if self._more else ()
        row: TrendRow = _new(TrendRow, (parameter.name, parameter.chunk, micro, *measured, next(self._order), more))
        if each:
            self.unreduced.rows.append(row)
        else:
            self._last.pop(index, None)
            self._last[index] = row

    def _main(self, parameter: Parameter, gradient: Any) -> Any:
        found = self._trends.gradient(parameter.value, True)
        if getattr(parameter.value, "main_grad", None) is None:
            text = "params_have_main_grad is true, and a parameter has no main_grad; its grad is read instead."
            log.warning(text, once="monitor main_grad")
        return gradient if found is None else found

    # --- around the step of the optimizer

    def before(self) -> None:
        """The optimizer is about to step: gradients are final."""
        self._follow()
        wanted, trends = self._wanted, self._trends
        if not wanted.each_micro_batch:
            self._learn()
            self.unreduced.rows += self._last.values()
        if wanted.gradients and self._writes_reduced:
            self._table(REDUCED, "gradient", self._gradients())
            self._note_frozen(self._tables[-1])
        if wanted.weights:
            self._table(BEFORE, "parameter", ((each, each.value) for each in self._parameters))
        before = wanted.states and not wanted.states_after
        states = self._states() if before or wanted.direction else ()
        if before:
            self._add_states(states)
        if self.directions is not None:
            self._tables.append(self.directions.table(self._in_backward_order(), self._more))
        if wanted.direction:
            self._add_direction(states)
        if wanted.signs:
            self._add_signs()
        if wanted.signatures is not None:
            self._add_signatures(wanted.signatures)
        if wanted.update:
            self._copies = [trends.copy(each.value) for each in self._parameters]

    def forget_before(self) -> None:
        """Forget what `before` has read; gradients that were reported stay."""
        self._tables, self._copies = [], []
        if not self._wanted.each_micro_batch:
            self.unreduced.rows.clear()

    def after(self) -> list[TrendTable]:
        """The optimizer has stepped; the rows of the step."""
        wanted = self._wanted
        if wanted.weights:
            self._table(AFTER, "parameter", ((each, each.value) for each in self._parameters))
        if wanted.states and wanted.states_after:
            self._add_states(self._states())
        if wanted.update:
            table = TrendTable(UPDATE, _UPDATE_OPS, more=self._more)
            measurer = self._measurers["parameter"]
            for before, each in zip(self._copies, self._parameters):
                self._append(table, each, measurer.change(before, each.value))
            self._tables.append(table)
            self._copies = []
        return [self.unreduced, *self._tables]

    def _learn(self) -> None:
        seen = self.micro_batches
        if seen and self._expected != seen:
            # One that is skipped in this step was recorded in none: from now on all of them are.
            self._expected = seen if self._expected is None else 1

    def _gradients(self) -> Iterable[tuple[Parameter, Any]]:
        for each in self._parameters:
            gradient = self._trends.gradient(each.value, self._wanted.main_gradients)
            if gradient is not None:
                yield each, gradient

    def _in_backward_order(self) -> list[Gradient]:
        """The gradients in the order in which they became ready; if nothing reported that, the last parameter first."""
        found = [Gradient(each.name, each.chunk, each.placement, value) for each, value in self._gradients()]
        found.reverse()
        at = {(row.chunk, row.name): index for index, row in enumerate(self.unreduced.rows)}
        return sorted(found, key=lambda each: at.get((each.chunk, each.name), -1))

    def _note_frozen(self, table: TrendTable) -> None:
        """One row without values says that a gradient is missing because the program has frozen the parameter."""
        frozen, self._frozen = self._frozen, []
        for each in frozen:
            more = (each.placement,) if table.more else ()
            table.rows.append(TrendRow(each.name, each.chunk, 0, None, "", FROZEN, 1, False, next(self._order), more))

    def _states(self) -> list[Mapping[str, Any]]:
        """The state that the optimizer keeps for each parameter."""
        optimizer, state_of = self._watched.optimizer, self._trends.optimizer_state
        return [state_of(optimizer, each.value) for each in self._parameters]

    def _add_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        tables: dict[str, TrendTable] = {}
        for each, of_parameter in zip(self._parameters, states):
            for name, state in of_parameter.items():
                if name not in MOMENTS and self._wanted.as_msprobe:
                    continue
                table = tables.get(name)
                if table is None:
                    family = _NO_NAME.sub("_", name)
                    table = tables[name] = TrendTable(family, self._wanted.ops["optimizer"], more=self._more)
                self._append(table, each, self._measurers["optimizer"].measure(state))
        if not tables:
            text = "The optimizer keeps no state for the parameters yet; there are no rows of it."
            log.info(text)
        self._tables += tables.values()

    def _add_direction(self, states: Sequence[Mapping[str, Any]]) -> None:
        measurer = self._measurers["gradient"]
        table = TrendTable(DIRECTION, self._wanted.ops["gradient"])
        of_parameter = dict(zip(map(id, self._parameters), states))
        for each, gradient in self._gradients():
            state = of_parameter[id(each)]
            moment = state.get(MOMENTS[0], state.get("momentum_buffer"))
            measured = measurer.number(1.0) if moment is None else measurer.agreement(gradient, moment)
            self._append(table, each, measured, own_shape=True)
        self._tables.append(table)

    def _add_signs(self) -> None:
        table = TrendTable(SIGN, ("positive",))
        for each, gradient in self._gradients():
            self._append(table, each, self._measurers["gradient"].signs(gradient))
        self._tables.append(table)

    def _add_signatures(self, wanted: WantedSignatures) -> None:
        table = TrendTable(SIGN, wanted.ops, more=(CHECKSUM,) if wanted.checksum else ())
        pairs = list(self._gradients())
        values = [gradient for _, gradient in pairs]
        signatures = self._measurers["gradient"].signatures(values, wanted.bounds, wanted.checksum, wanted.bits)
        for (each, gradient), found in zip(pairs, signatures):
            if found is None:
                continue
            more = (found.checksum,) if wanted.checksum else ()
            shape, dtype = tuple(gradient.shape), str(gradient.dtype)
            elements = math.prod(shape)
            measured = Measured(found.values, str(list(shape)), dtype, elements)
            table.rows.append(TrendRow(each.name, each.chunk, 0, *measured, next(self._order), more))
            table.bits.append(found.bits)
        self._tables.append(table)

    # --- rows

    def _table(self, family: str, group: str, values: Iterable[tuple[Parameter, Any]]) -> None:
        table = TrendTable(family, self._wanted.ops[group], more=self._more)
        measure = self._measurers[group].measure
        for parameter, value in values:
            self._append(table, parameter, measure(value), family == REDUCED)
        self._tables.append(table)

    def _append(
        self, table: TrendTable, parameter: Parameter, measured: Measured | None, own_shape: bool = False
    ) -> None:
        if measured is None:
            return
        if parameter.placement and self._wanted.as_msprobe and not own_shape:
            measured = measured._replace(shape=parameter.whole)
        more = (parameter.placement,) if table.more else ()
        row = parameter.name, parameter.chunk, 0, *measured, next(self._order), more
        table.rows.append(_new(TrendRow, row))
