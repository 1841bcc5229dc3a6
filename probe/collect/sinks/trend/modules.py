"""Activations, their gradients, and L2 metrics: spectral norms, the spread of attention, the choices of routers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Callable

from probe.backends.protocol import FrameworkAdapter, Measured, Measurer, trends_of
from probe.collect.sinks.trend.wanted import Chunk, Wanted
from probe.common import log
from probe.common.interfaces import Handle, ModuleName
from probe.common.report.trends import (
    ACTIVATION,
    ACTIVATION_GRADIENT,
    ATTENTION,
    LINEAR,
    ROUTER_LOGITS,
    ROUTER_WEIGHTS,
    TrendRow,
    TrendTable,
)

_WORTH_KNOWING = 8192
"""Elements from which on to look whether a tensor is known takes less than to measure it; as for records."""
_new: Any = tuple.__new__
"""Makes a named tuple without the function of Python that is its constructor."""
_NOTHING = (None, "", "", 1, False)
"""The row of a gradient that does not exist."""
_Item = tuple[str, Any]
"""The end of the name of a tensor among several (``_0``), and the tensor."""


class _Module:
    """One module that is watched, with the names of its rows."""

    __slots__ = ("chunk", "counts", "name", "names", "path")

    def __init__(self, path: str, chunk: int) -> None:
        self.path = path
        self.chunk = chunk
        self.name = ModuleName(f"{chunk}:{path}")
        self.names: dict[tuple[str, int, int, int], str] = {}
        self.counts: dict[int, int] = {}
        """By micro batch, the calls so far; those of recomputations below zero."""


class _Call:
    """One call of a module, and what its backward gave."""

    __slots__ = ("arguments", "counts", "found", "micro", "module", "number", "positions", "rows", "takers", "watched")

    def __init__(self, module: _Module | None, micro: int, number: int) -> None:
        self.module = module
        self.watched: _Module | None = None
        """The module, if something else than rows is made of its output."""
        self.micro = micro
        self.number = number
        self.arguments: Any = None
        self.rows: list[tuple[Any, ...]] = []
        """Rows without their positions, which they get when the call ends."""
        self.counts = [0, 0]
        """The tensors that go in and come out."""
        self.takers: tuple[list[int], list[int]] = ([], [])
        """The indices of those that take a gradient, by which gradients are reported."""
        self.found: dict[tuple[int, int], Measured | None] = {}
        self.positions: dict[tuple[int, int], int] = {}
        """Rows that are in the table already."""


_ROLES = ("input", "output")
_GRADIENT_ROLES = ("input_grad", "output_grad")
_FIELDS = {"input": 1, "output": 0}
"""A listener is told of the gradient of an output as ``input`` of the backward."""


class ModuleTrends:
    """Implements the part of `probe.common.interfaces.Listener` that hooks on modules report to.

    Args:
        adapter: The framework; of this monitor alone.
        wanted: What is collected.
        chunks: The models.
        measurer: Computes statistics.
        order: Positions of rows.
        failed: Told of failures of the tool.
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        wanted: Wanted,
        chunks: Sequence[Chunk],
        measurer: Measurer,
        order: Iterator[int],
        failed: Callable[[Any, BaseException], None],
    ) -> None:
        self._order = order
        self._tensors, self._hooks, self._trends = adapter.tensors, adapter.hooks, trends_of(adapter)
        self._wanted = wanted
        self._chunks = chunks
        self._measurer = measurer
        self.failed = failed
        self._is_tensor = adapter.tensors.is_tensor
        self._modules: dict[str, _Module] = {}
        self._depth = 0
        self._is_training = False
        self._micro = [-1] * len(chunks)
        self._known: dict[int, tuple[weakref.ref[Any], Any, Measured]] = {}
        self._handles: list[Handle] = []
        self.attention: Callable[[_Module | Any, int, Sequence[Any]], None] | None = None
        """Told of the arguments of calls, for the L2 metrics."""
        self.routers: Callable[[_Module | Any, int, Any], None] | None = None
        """Told of what calls return, for those of routers."""
        self._measured_modules: set[str] = set()
        self.begin_step()

    # --- the life of a step

    def begin_step(self) -> None:
        """Forget the step before."""
        ops = self._wanted.ops["module"]
        self.forward = TrendTable(ACTIVATION, ops, has_micro=True)
        self.backward = TrendTable(ACTIVATION_GRADIENT, ops, has_micro=True)
        self._micro = [-1] * len(self._chunks)
        self._depth = 0
        self._known.clear()
        for module in self._modules.values():
            module.counts.clear()

    @property
    def passes(self) -> int:
        """The forward passes of this step in which gradients were recorded."""
        return max(self._micro, default=-1) + 1

    def attach(self, also: Callable[[str], bool] | None = None) -> None:
        """Place hooks on the modules that are wanted, and on those of which `also` is true."""
        wanted = self._wanted
        listener: Any = self  # of modules alone
        for at, chunk in enumerate(self._chunks):
            if (model := chunk.model) is not None:
                self._handles.append(self._hooks.attach_passes(model, self._counting(at), _nothing))
            for path, module in chunk.modules:
                measured = wanted.modules and wanted.is_module(path)
                if not measured and not (also is not None and also(path)):
                    continue
                known = self._modules.setdefault(f"{chunk.number}:{path}", _Module(path, chunk.number))
                if measured:
                    self._measured_modules.add(known.name.base)
                handles = self._hooks.attach_module(module, known.name, listener, parameters=False)
                self._handles += [handles.gradients, handles.forward]

    def detach(self) -> None:
        """Take every hook away."""
        handles, self._handles = self._handles, []
        for handle in reversed(handles):
            try:
                handle.remove()
            except Exception as error:
                self.failed("a hook of the monitor", error)

    def end_step(self) -> list[TrendTable]:
        """The rows of the step that is over."""
        self._hooks.finish_backward()
        self._hooks.end_step()
        return [self.forward, self.backward]

    def _counting(self, at: int) -> Callable[[], None]:
        recording, recomputing = self._trends.recording, self._trends.recomputing

        def begin() -> None:
            if recording() and not recomputing():
                self._micro[at] += 1

        return begin

    # --- forward

    def enter_module(self, name: ModuleName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Call:
        """A call begins. What is called outside of training is followed and not measured."""
        if not self._depth:
            self._is_training = self._trends.recording()
        self._depth += 1
        if not self._is_training:
            return _Call(None, 0, 0)
        module = self._modules[name.base]
        micro = max(self._micro[module.chunk], 0) if module.chunk < len(self._micro) else 0
        again = self._trends.recomputing()
        key = -micro - 1 if again else micro
        number = module.counts.get(key, 0)
        module.counts[key] = number + 1
        call = _Call(module, micro, number)
        if self.attention is not None and not again:
            self.attention(module, micro, args)
        if self.routers is not None and not again:
            call.watched = module
        if name.base not in self._measured_modules:
            call.module = None
            return call
        # A module that works in place overwrites what it was given.
        if self._wanted.as_msprobe:
            call.arguments = args, kwargs
        else:
            self._measure(call, 0, self._items(args, kwargs, module), again)
        return call

    def leave_module(self, call: _Call, output: Any, parameters: Mapping[str, Any]) -> bool:
        self._depth -= 1
        if call.watched is not None and self.routers is not None:
            self.routers(call.watched, call.micro, output)
        module = call.module
        if module is None:
            return False
        again = False
        if call.arguments is not None:
            (args, kwargs), call.arguments = call.arguments, None
            self._measure(call, 0, self._items(args, kwargs, module), again)
        else:
            again = self._wanted.activations and self._trends.recomputing()
        if self._is_tensor(output):
            items: Sequence[_Item] = (("", output),)
        else:
            items = self._items(output if isinstance(output, (tuple, list)) else (output,), {}, module)
        self._measure(call, 1, items, again)
        order, rows = self._order, self.forward.rows
        for row in call.rows:
            rows.append(_new(TrendRow, (*row, next(order), ())))
        call.rows = []
        return self._wanted.activation_gradients

    def fail_module(self, call: _Call, parameters: Mapping[str, Any]) -> None:
        self._depth -= 1

    def _items(self, args: Sequence[Any], kwargs: Mapping[str, Any], module: _Module) -> list[_Item]:
        """The tensors of arguments, keyword arguments last; a container in a container has tensors of its own."""
        is_tensor = self._is_tensor
        if len(args) == 1 and not kwargs and is_tensor(args[0]):
            return [("", args[0])]
        strict = self._wanted.as_msprobe
        found: list[_Item] = []
        for value in (*args, *kwargs.values()):
            if is_tensor(value):
                found.append(("", value))
            elif isinstance(value, Mapping) and strict:
                log.warning(f"{module.path}: a dict is no tensor; it has no row.", once=f"monitor dict {module.path}")
            elif isinstance(value, (list, tuple, Mapping)):
                inner = self._trends.tensors_in(value)
                found += [("", None)] if strict and inner else [("", each) for each in inner]
        return found

    def _measure(self, call: _Call, side: int, items: Sequence[_Item], again: bool) -> None:
        module = call.module
        assert module is not None
        count = call.counts[side] = len(items)
        wants_rows = self._wanted.activations and not again
        takers = call.takers[side]
        is_item, all_rows = self._wanted.is_item, wants_rows
        for index, (_, tensor) in enumerate(items):
            if is_item is not None:
                wants_rows = all_rows and is_item(module.path, _ROLES[side], index)
            if tensor is None:
                if wants_rows:
                    name = self._name(call, _ROLES[side], index, count)
                    call.rows.append((name, module.chunk, call.micro, None, "", "", 1, False))
                continue
            if self._trends.takes_gradient(tensor):
                takers.append(index)
            if wants_rows:
                measured = self._of(tensor, side == 1)
                if measured is not None:
                    name = self._name(call, _ROLES[side], index, count)
                    call.rows.append((name, module.chunk, call.micro, *measured))

    def _of(self, tensor: Any, is_output: bool) -> Measured | None:
        """The statistics of a tensor, which may be the output of another module."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == self._tensors.content_mark(tensor):
            return known[2]
        measured = self._measurer.measure(tensor)
        if is_output and measured is not None and measured.elements >= _WORTH_KNOWING:
            mark = self._tensors.content_mark(tensor)
            if mark is not None:
                self._known[id(tensor)] = weakref.ref(tensor), mark, measured
        return measured

    def _name(self, call: _Call, role: str, index: int, count: int) -> str:
        module = call.module
        assert module is not None
        number = 0 if self._wanted.as_msprobe else call.number
        key = role, index, count, number
        name = module.names.get(key)
        if name is None:
            name = self._wanted.item_name(module.path, role, index, count)
            name = module.names[key] = f"{name}.{number}" if number else name
        return name

    # --- backward

    def enter_backward(self, call: _Call, outputs: int, inputs: int) -> _Call:
        call.found = {}
        return call

    def backward_gradient(self, call: _Call, field: str, index: int, gradient: Any) -> None:
        side = _FIELDS[field]
        takers = call.takers[side]
        at = takers[index] if index < len(takers) else index
        call.found[side, at] = self._measurer.measure(gradient)

    def leave_backward(self, call: _Call) -> None:
        module = call.module
        if module is None:
            return
        rows, is_item = self.backward.rows, self._wanted.is_item
        for side in (0, 1):
            count = call.counts[side]
            for index in range(count):
                if is_item is not None and not is_item(module.path, _GRADIENT_ROLES[side], index):
                    continue
                measured = call.found.get((side, index))
                name = self._name(call, _GRADIENT_ROLES[side], index, count)
                values = _NOTHING if measured is None else measured
                row = _new(TrendRow, (name, module.chunk, call.micro, *values, next(self._order), ()))
                position = call.positions.get((side, index))
                if position is not None and position < len(rows) and rows[position].name == row.name:
                    # A gradient that came late.
                    if measured is not None:
                        rows[position] = row
                else:
                    call.positions[side, index] = len(rows)
                    rows.append(row)

    def parameter_gradient(self, module: ModuleName, parameter: str, gradient: Any, owed: bool) -> None:
        """Gradients of parameters come from hooks of their own."""


def _nothing() -> None:
    return None


# --- features


_ATTENTION_OPS = ("entropy", "softmax_max")
_LINEAR_OPS = ("kernel_norm", "sr")
_ROUTER_OPS = ("entropy", "load", "probability")


class FeatureTrends:
    """Rows of the L2 metrics of one step; for the arguments see `ParameterTrends`."""

    def __init__(
        self,
        adapter: FrameworkAdapter,
        wanted: Wanted,
        chunks: Sequence[Chunk],
        order: Iterator[int],
        failed: Callable[[Any, BaseException], None],
    ) -> None:
        self._trends, self._wanted, self._order, self._failed = trends_of(adapter), wanted, order, failed
        self._is_tensor = adapter.tensors.is_tensor
        linear = wanted.linear
        self._spectral_norms = self._trends.spectral_norms()
        self._linear: list[tuple[str, int, weakref.ref[Any]]] = []
        if linear is not None:
            self._linear = [
                (f"{path}.linear", chunk.number, weakref.ref(module))
                for chunk in chunks
                for path, module in chunk.modules
                if self._trends.linear_weight(module) is not None and linear(f"{chunk.number}:{path}")
            ]
        self.begin_step()

    @property
    def watches_modules(self) -> bool:
        """True if modules are to be hooked."""
        wanted = self._wanted
        return any(each is not None for each in (wanted.attention, wanted.router_logits, wanted.router_weights))

    def wants_module(self, path: str) -> bool:
        """True if the module at `path` computes attention, or is a router."""
        wanted = self._wanted
        return any(_fits(each, path) for each in (wanted.attention, wanted.router_logits, wanted.router_weights))

    def listen_to(self, modules: ModuleTrends) -> None:
        """Have the arguments of attention reported, and the outputs of routers."""
        wanted = self._wanted
        if wanted.attention is not None:
            modules.attention = self._add_attention
        if wanted.router_logits is not None or wanted.router_weights is not None:
            modules.routers = self._add_routers

    def begin_step(self) -> None:
        """Forget the step before."""
        self._waiting: list[tuple[Callable[[Any], None], Any]] = []
        """Functions that add the rows of a call, each with its numbers, which may be on a device."""
        self._attention = TrendTable(ATTENTION, _ATTENTION_OPS, has_micro=True, has_shape=False)
        self._norms = TrendTable(LINEAR, _LINEAR_OPS, has_shape=False)
        self._routers = {
            family: TrendTable(family, _ROUTER_OPS, has_micro=True, has_shape=False)
            for family in (ROUTER_LOGITS, ROUTER_WEIGHTS)
        }

    def before(self) -> None:
        """The optimizer is about to step."""
        weights = {}
        for at, (_, _, weak) in enumerate(self._linear):
            module = weak()
            weight = None if module is None else self._trends.linear_weight(module)
            if weight is not None:
                weights[at] = weight
        for at, values in self._spectral_norms(weights).items() if weights else ():
            name, chunk, _ = self._linear[at]
            self._norms.rows.append(TrendRow(name, chunk, 0, values, "", "", order=next(self._order)))

    def forget_before(self) -> None:
        """Forget what `before` has read."""
        self._norms.rows.clear()

    def tables(self) -> list[TrendTable]:
        """The rows of the step."""
        waiting, self._waiting = self._waiting, []
        for (add, _), values in zip(waiting, self._trends.read([made for _, made in waiting])):
            add(values)
        return [self._attention, *self._routers.values(), self._norms]

    def _add_attention(self, module: Any, micro: int, args: Sequence[Any]) -> None:
        if not _fits(self._wanted.attention, module.path):
            return
        tensors = [each for each in args if self._is_tensor(each)]
        if len(tensors) < 2:
            text = f"attention_hook: {module.path} has fewer than two tensors as positional arguments; no row is made."
            log.warning(text, once=f"monitor attention {module.path}")
            return
        made = self._trends.attention(tensors[0], tensors[1], self._wanted.order)
        name, table, order = f"{module.path}.attention", self._attention, next(self._order)
        self._waiting.append((partial(self._attend, table, name, module.chunk, micro, order), made))

    @staticmethod
    def _attend(table: TrendTable, name: str, chunk: int, micro: int, order: int, values: Any) -> None:
        table.rows.append(TrendRow(name, chunk, micro, values, "", "", order=order))

    def _add_routers(self, module: Any, micro: int, output: Any) -> None:
        wanted = self._wanted
        for family, chosen in ((ROUTER_LOGITS, wanted.router_logits), (ROUTER_WEIGHTS, wanted.router_weights)):
            if not _fits(chosen, module.path):
                continue
            tensors = [output] if self._is_tensor(output) else self._trends.tensors_in(output)
            if not tensors or not tensors[0].shape:
                text = f"{family}: {module.path} returns no tensor with a dimension for experts; no row is made."
                log.warning(text, once=f"monitor router {module.path}")
                continue
            made = self._trends.routing(tensors[0], family == ROUTER_LOGITS)
            orders = [next(self._order) for _ in range(tensors[0].shape[-1] + 1)]
            self._waiting.append((partial(self._route, self._routers[family], module, micro, orders), made))

    @staticmethod
    def _route(table: TrendTable, module: Any, micro: int, orders: Sequence[int], experts: Any) -> None:
        entropies, loads, probabilities = zip(*experts)
        whole = sum(entropies), max(loads), max(probabilities)
        names = [f"{module.path}.router", *(f"{module.path}.expert_{at}" for at in range(len(experts)))]
        for name, values, order in zip(names, [whole, *experts], orders):
            table.rows.append(TrendRow(name, module.chunk, micro, values, "", "", order=order))


def _fits(chosen: Callable[[str], bool] | None, path: str) -> bool:
    return chosen is not None and chosen(path)
