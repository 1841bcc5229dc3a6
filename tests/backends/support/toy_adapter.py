"""The smallest whole adapter: the groups `Tensors`, `Hooks` and `Randomness` for `toy_framework`, and none besides.

With these a program is dumped, and its dumps are compared and searched for values that are not finite.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import toy_framework as toy

from probe.backends.protocol import FrameworkAdapter, HeldTensor, ModuleHandles
from probe.backends.shared import api_list, tensors
from probe.backends.shared.api_list import Watched
from probe.backends.shared.backward_tracker import BackwardTracker
from probe.backends.shared.choices import choices_of
from probe.backends.shared.gradient_graph import CallWatch, ModuleWatch
from probe.backends.shared.models import ModuleShape, NamedModules
from probe.backends.shared.patching import Attributes, Handles, wrap_attribute
from probe.backends.shared.randomness import return_input
from probe.backends.shared.tensors import npy_file
from probe.common.callstack import leave_out
from probe.common.containers import by_prefix, found_in
from probe.common.dump.choices import CHOICES
from probe.common.interfaces import (
    ApiName,
    Entry,
    Handle,
    Listener,
    Logs,
    ModuleName,
    RandomCall,
    StatisticsMode,
    TensorFile,
)
from probe.common.numerics.sketch import sketch

_WATCHED = [
    Watched(owner, name, getattr(owner, name), ApiName(f"{prefix}.{name}", name))
    for prefix, owner, names in (
        ("Functional", toy, ("relu", "linear", "dropout")),
        ("Torch", toy, ("matmul", "abs", "cat", "split", "sum")),
        ("Tensor", toy.Tensor, ("__add__", "__sub__", "__mul__", "__iadd__")),
    )
    for name in names
]
_RISK_PREFIXES = {prefix: (prefix,) for prefix in ("Functional", "Torch", "Tensor")}
SHAPE = ModuleShape(
    root="Module", inside=lambda model: model.named_modules(), parameters=lambda module: module._parameters,
    layers="toy_framework.", held=(("_parameters", "parameter"),),
)  # fmt: skip


class ToyTensors:
    """Implements `probe.backends.protocol.Tensors`: everything is described at once."""

    several_outputs: tuple[type, ...] = (tuple, list)
    counted_memory = None

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, toy.Tensor)

    def describe_tensor(self, tensor: Any, summary: StatisticsMode) -> Entry:
        data = tensor.data
        entry: Entry = {"type": "torch.Tensor", "dtype": f"torch.{data.dtype}", "shape": list(data.shape)}
        if summary.mode != "xor":
            entry.update(zip(("Max", "Min", "Mean", "Norm"), _statistics(data)))
            if summary.nonfinite and data.dtype.kind == "f" and tensors.shows(entry):
                tensors.add(entry, *tensors.counted(data))
        flat = np.ascontiguousarray(data).reshape(-1)
        if summary.sketch:
            entry["sketch"] = sketch(flat).packed()
        if summary.mode == "xor":
            entry["md5"] = tensors.xor(flat.view(np.uint8))
        entry["requires_grad"] = tensor.requires_grad
        if summary.mode == "md5":
            entry["md5"] = tensors.crc32(flat.view(np.uint8))
        return entry

    def note_choices(self, entry: Entry, indices: Any, source: Any) -> None:
        entry[CHOICES] = choices_of(indices.data, source, lambda values: values.data).packed()

    def direct_describer(self, summary: StatisticsMode) -> None:
        return None

    def content_mark(self, tensor: Any) -> None:
        return None

    def memory(self, tensor: Any) -> tuple[Any, Any, Any]:
        return tensor if tensor.base is None else tensor.base, tensor, None

    def base(self, tensor: Any) -> Any:
        return tensor.base

    def part(self, tensor: Any) -> None:
        return None

    def describe_value(self, value: Any, key: str | None) -> Entry | None:
        return {"type": "torch.dtype", "value": f"torch.{value}"} if isinstance(value, np.dtype) else None

    def tensor_file(self, tensor: Any, copied: bool) -> TensorFile | None:
        data = tensor.data if isinstance(tensor, toy.Tensor) else tensor
        return npy_file(np.array(data, order="C")) if data.dtype.kind in "biufcUS" else None

    def pending(self) -> int:
        return 0

    def resolve(self) -> None:
        pass


def _statistics(data: Any) -> tuple[Any, Any, Any, Any]:
    if not data.size:
        return None, None, None, None
    if data.dtype == bool:
        return bool(data.any()), bool(data.all()), None, None
    kind = data.dtype.kind
    if not data.ndim:
        return (data.item(),) * 4 if data.dtype.kind in "iuf" else (float(abs(data)),) * 4
    data = np.abs(data) if kind == "c" else data
    wide = data.astype(np.float64)
    with np.errstate(all="ignore"):
        norm = None if kind == "c" else float(np.sqrt(np.square(wide).sum()))
        return data.max().item(), data.min().item(), float(wide.mean()), norm


class ToyGraph:
    """Implements `probe.backends.shared.gradient_graph.GradientGraph`."""

    without_gradient_last = False

    def __init__(self, listener: Listener) -> None:
        self.guarded = functools.partial(_guarded, listener)

    recording = staticmethod(lambda: toy.Engine.enabled)
    entry_number = staticmethod(lambda inputs: next(toy._numbers))
    next_edges = staticmethod(lambda node: node.edges)
    number = staticmethod(lambda node: node.number)
    metadata = staticmethod(lambda node: node.metadata)
    current_pass = staticmethod(lambda: toy.Engine.current_pass)
    current_number = staticmethod(lambda: None if toy.Engine.current is None else toy.Engine.current.number)

    def input_edges(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        return self.output_edges((args, kwargs), [])

    def output_edges(self, output: Any, inputs: list[Any]) -> list[Any]:
        return [each.edge() for each in found_in(output, toy.Tensor) if each.requires_grad]

    def writes(self, inputs: list[Any]) -> None:
        return None

    def returned_views(self, output: Any, inputs: list[Any]) -> tuple[()]:
        return ()

    def walked(self, nodes: Any) -> None:
        pass

    def hold(self, node: Any) -> None:
        pass

    def forget(self) -> None:
        pass

    def release(self, number: int) -> None:
        pass

    def register_prehook(self, node: Any, callback: Any) -> None:
        node.before.append(callback)

    def register_posthook(self, node: Any, callback: Any) -> None:
        node.after.append(callback)

    def at_end_of_pass(self, callback: Callable[[], None]) -> None:
        toy.Engine.at_end.append(callback)

    def add(self, one: Any, other: Any) -> Any:
        return toy.Tensor(one.data + other.data)


def _guarded(listener: Logs, about: Any, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        listener.failed(about, error)
        return None


# What stands in a backend's folder is left out of call stacks anyway.
leave_out(_guarded.__code__)


def _made(output: Any, edges: list[Any]) -> bool:
    """True if a call returned more than its inputs, whose edges are `edges`."""
    return any(each.edge() not in edges for each in found_in(output, toy.Tensor) if each.requires_grad)


class _Entry:
    """An element of a list that is there until `remove`."""

    def __init__(self, entries: list[Any], value: Any) -> None:
        self._entries, self._value = entries, value
        entries.append(value)

    def remove(self) -> None:
        self._entries[:] = [each for each in self._entries if each is not self._value]


class ToyHooks:
    """Implements `probe.backends.protocol.Hooks`."""

    def __init__(self) -> None:
        self._listener: Listener | None = None

    def _for(self, listener: Listener) -> BackwardTracker:
        if self._listener is not listener:
            self._listener, self._names, self._attributes = listener, NamedModules(SHAPE), Attributes()
            self._tracker = BackwardTracker(listener, ToyGraph(listener))
        return self._tracker

    def risk_class(self, base: str) -> str:
        return api_list.risk_class(base, _RISK_PREFIXES)

    def check_mode(self) -> None:
        pass

    def attach_apis(self, models: Any, listener: Listener, everything: bool = False) -> Handle:
        self._for(listener)
        for each in _WATCHED:
            function = getattr(each.owner, each.attribute)
            self._attributes.set(each.owner, each.attribute, self._wrapped(each.name, function, listener))
        return self._attributes

    def attach_custom_api(self, owner: Any, attribute: str, prefix: str, listener: Listener) -> Handle:
        self._for(listener)
        name = api_list.custom_name(owner, attribute, prefix, {"toy": _WATCHED})
        return wrap_attribute(owner, attribute, lambda function: self._wrapped(name, function, listener))

    def _wrapped(self, name: ApiName, function: Callable[..., Any], listener: Listener) -> Callable[..., Any]:
        tracker = self._tracker

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            tracker.advance_to_current()
            call = _guarded(listener, name, listener.enter_api, name, args, kwargs)
            if call is None:
                return function(*args, **kwargs)
            entered_at, edges = tracker.inputs(call, args, kwargs)
            try:
                output = function(*args, **kwargs)
            except BaseException:
                _guarded(listener, call, listener.fail_api, call)
                raise
            if output is NotImplemented:
                _guarded(listener, call, listener.cancel_api, call)
            elif _guarded(listener, call, listener.leave_api, call, output) and _made(output, edges):
                tracker.watch(CallWatch, call, entered_at, edges, output)
            return output

        leave_out(wrapper.__code__)
        return wrapper

    def attach_casts(self, listener: Listener, note: Callable[[str], None]) -> None:
        return None

    def attach_modules(self, models: Any, listener: Listener) -> ModuleHandles:
        self._for(listener)
        named, _ = self._names.give(by_prefix(models))
        return self._attach([(name, module, True) for name, module in named], listener)

    def attach_module(
        self, module: Any, name: ModuleName, listener: Listener, parameters: bool = True
    ) -> ModuleHandles:
        self._for(listener)
        return self._attach([(name, module, parameters)], listener)

    def _attach(self, modules: Iterable[tuple[ModuleName, Any, bool]], listener: Listener) -> ModuleHandles:
        forward: list[Handle] = []
        gradients: list[Handle] = []
        for name, module, parameters in modules:
            forward.append(_Entry(module.hooks, self._around(name, listener)))
            for key, parameter in module._parameters.items() if parameters else ():
                report = functools.partial(self._accumulated, name, key, listener)
                gradients.append(_Entry(parameter.accumulated, report))
        return ModuleHandles(Handles(forward), Handles(gradients))

    def _accumulated(self, name: ModuleName, key: str, listener: Listener, parameter: Any) -> None:
        owed = self._tracker.in_collected_pass()
        _guarded(listener, name, listener.parameter_gradient, name, key, parameter.grad, owed)

    def _around(self, name: ModuleName, listener: Listener) -> tuple[Callable[..., None], Callable[..., None]]:
        tracker, opened = self._tracker, []

        def before(module: Any, args: Any, kwargs: Any) -> None:
            tracker.advance_to_current()
            call = _guarded(listener, name, listener.enter_module, name, args, kwargs)
            opened.append((call, *((0, []) if call is None else tracker.inputs(call, args, kwargs))))

        def after(module: Any, output: Any, failed: bool) -> None:
            call, entered_at, edges = opened.pop()
            if call is None:
                return
            if failed:
                _guarded(listener, call, listener.fail_module, call, module._parameters)
            elif _guarded(listener, call, listener.leave_module, call, output, module._parameters):
                tracker.watch(ModuleWatch, call, entered_at, edges, output)

        leave_out(before.__code__), leave_out(after.__code__)
        return before, after

    def held_tensors(self, models: Any) -> Iterable[tuple[int, HeldTensor]]:
        return SHAPE.tensors(models).items()

    def attach_optimizer_hooks(self, listener: Listener) -> Handle:
        return Handles([])

    def attach_passes(self, models: Any, begin: Callable[[], None], end: Callable[[], None]) -> Handle:
        model = next(iter(by_prefix(models).values()))
        return _Entry(model.hooks, (lambda *_: begin(), lambda *_: end()))

    def attach_gradient(self, tensor: Any, callback: Callable[[Any], None], logs: Logs, about: str) -> Handle | None:
        if not tensor.requires_grad:
            return None
        node, slot = tensor.edge()
        return _Entry(node.before, lambda given: _guarded(logs, about, callback, given[slot]))

    def unobserved(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def finish_backward(self) -> None:
        if self._listener is not None:
            self._tracker.finish()

    def end_step(self) -> None:
        if self._listener is not None:
            self._tracker.forget()

    def is_module(self, value: Any) -> bool:
        return isinstance(value, toy.Module)


class ToyRandomness:
    """Implements `probe.backends.protocol.Randomness`."""

    def seed_everything(self, seed: int, deterministic: bool) -> None:
        os.environ["PYTHONHASHSEED"] = str(seed)
        random.seed(seed)
        np.random.seed(seed)
        toy.generator = np.random.default_rng(seed)

    def remove_dropout(self) -> Handle:
        return return_input(toy, "dropout")

    def fix_random_calls(self) -> Handle:
        return Handles([])

    def random_calls(self) -> Sequence[RandomCall]:
        return [RandomCall("toy", toy, "dropout")]

    def dropping_calls(self) -> Sequence[RandomCall]:
        return ()

    def random_state(self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any | None:
        if base != "Functional.dropout":
            return None
        state = toy.generator.bit_generator.state["state"]
        return toy.Tensor(np.frombuffer(b"".join(each.to_bytes(16, "little") for each in state.values()), np.uint8))


class ToyAdapter:
    """Implements `probe.backends.protocol.FrameworkAdapter` without an optional group."""

    framework = "pytorch"  # the schema has no name for it
    absent = ""
    execution = training = settings = trends = replaying = None

    def __init__(self) -> None:
        self.tensors, self.hooks, self.randomness = ToyTensors(), ToyHooks(), ToyRandomness()

    def rank(self) -> None:
        return None


if TYPE_CHECKING:
    _fulfils: FrameworkAdapter = ToyAdapter()
