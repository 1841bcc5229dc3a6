"""The backward of cells and functions.

Two ways, behind one interface. From MindSpore 2.7.2 on the nodes of the gradient graph can be had, and the tracker that
is shared with other frameworks changes nothing in it. Before that there are only identity operations to put around a
call's inputs, which can change the order in which gradients are accumulated: see `IdentityTracker`.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from mindspore import Tensor, ops

from probe.backends.mindspore.gradient_graph import (
    DIFFERENTIABLE,
    Arguments,
    MindSporeGraph,
    PrimitiveWatch,
    Tracker,
    tensors_in,
)
from probe.backends.mindspore.guards import guarded
from probe.backends.mindspore.internals import HAS_NODES, Function, executor, register_hook, remove_hook
from probe.backends.shared.backward_tracker import BackwardTracker
from probe.backends.shared.gradient_graph import HookedCalls, ModuleWatch
from probe.common.interfaces import Listener

_HOOKED = "_msprobe_outputs"
"""The first part of the attribute of an output tensor with the calls that returned it; two trackers may be at work."""
_alias: Callable[[Tensor], Tensor] = ops.stop_gradient
"""The function as it is when nothing is being collected yet."""
_recording: Callable[[], bool] = executor.requires_grad
_register_hook = register_hook
_remove_hook = remove_hook


def _hook(tensor: Tensor, callback: Callable[[Any], None]) -> int | None:
    """The number of a hook on a tensor; ``None`` where it takes no gradient, which only trying shows."""
    try:
        return _register_hook(tensor, callback)
    except RuntimeError:
        return None


_gradient_code = type(executor).grad.__code__


def _in_backward() -> bool:
    """True if a backward pass called what runs now, as it does to compute something again."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _gradient_code:
        frame = frame.f_back
    return frame is not None


class _Identity(Function):  # type: ignore[misc]
    """Returns its inputs as new tensors over the same memory, and calls `callback` with their gradients."""

    @staticmethod
    def forward(ctx: Any, callback: Callable[[Any], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.callback = callback
        # An unused one has None.
        ctx.set_materialize_grads(False)
        # Not the inputs themselves: MindSpore would make views of them, and what a kernel writes to a view is lost.
        return tuple(_alias(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.callback(gradients)
        return (None, *gradients)


def _pass_through(callback: Callable[[Any], None], tensors: list[Tensor]) -> tuple[Tensor, ...]:
    passed: Any = _Identity.apply(callback, *tensors)
    if not isinstance(passed, tuple):
        passed = (passed,)
    for before, after in zip(tensors, passed):
        # mindtorch refuses a tensor without its own mark of the device.
        device = getattr(before, "_device", None)
        if device is not None and getattr(after, "_device", None) is None:
            after._device = device
        # By a weak reference, or only the garbage collector would free its memory.
        after.assign_value = functools.partial(_assign_both, before, weakref.ref(after))
    return tuple(passed)


def unaliased(tensor: Tensor) -> Tensor:
    """The tensor of the program that `tensor` stands for inside a call; any other tensor itself."""
    assign = tensor.__dict__.get("assign_value")
    while isinstance(assign, functools.partial) and assign.func is _assign_both:
        tensor = assign.args[0]
        assign = tensor.__dict__.get("assign_value")
    return tensor


def _assign_both(tensor: Tensor, alias: weakref.ref[Tensor], value: Tensor) -> Tensor:
    """Put `value` into both objects, as ``x[i] = v`` does with one."""
    tensor.assign_value(value)
    return Tensor.assign_value(alias(), value)


class _Entered:
    """A call whose forward runs; `watch` is there when it has returned."""

    __slots__ = ("entered_at", "inputs", "kind", "passed", "watch")

    def __init__(self, kind: type[ModuleWatch], entered_at: int) -> None:
        self.kind = kind
        self.entered_at = entered_at
        self.inputs = 0
        self.passed = 0
        """Identity operations whose gradient is to come."""
        self.watch: ModuleWatch | None = None

    @property
    def name(self) -> str:
        """The name of the call that a failure in its backward is logged with."""
        return getattr(self.watch.call, "name", "") if self.watch is not None else ""


class IdentityTracker:
    """Implements `probe.backends.mindspore.gradient_graph.Tracker` with identity operations."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._hooked_in = f"{_HOOKED}_{id(self)}"
        self._order = itertools.count()
        self._open: list[ModuleWatch] = []
        self._deferred: list[Callable[[], None]] = []
        self._hooks: list[tuple[int, weakref.ref[Tensor], int]] = []
        self._lowest: int | None = None
        """The lowest `entered_at` of which a backward has been seen."""

    # --- forward

    def enter(self, kind: type[ModuleWatch], about: Any, arguments: Arguments) -> tuple[Any, Arguments]:
        if not _recording():
            return None, arguments
        if self._lowest is not None and not _in_backward():
            self.finish()  # a forward begins, so the backward before it is over
        entered = _Entered(kind, next(self._order))
        args, kwargs = arguments
        values = list(args) + list(kwargs.values())
        tensors = [at for at, value in enumerate(values) if isinstance(value, Tensor)]
        entered.inputs = len(tensors)
        inputs = [(index, at) for index, at in enumerate(tensors) if values[at].dtype in DIFFERENTIABLE]
        # A primitive's gradients are reported one by one, in the order in which they are computed.
        for group in [[one] for one in inputs] if kind is PrimitiveWatch else [inputs]:
            # A module may ask whether two of its inputs are one object, and attention of its query, key and value.
            # In any other function each has a gradient of its own.
            times = Counter(id(values[at]) for _, at in group)
            same: dict[int, list[tuple[int, int]]] = {}
            for index, at in group:
                alone = kind.each_alone and times[id(values[at])] < 3
                same.setdefault(index if alone else id(values[at]), []).append((index, at))
            if not same:
                continue
            entered.passed += 1
            shared = [[index for index, _ in each] for each in same.values()]
            callback = functools.partial(guarded, self._listener, entered, self._input_gradients, entered, shared)
            passed = _pass_through(callback, [values[each[0][1]] for each in same.values()])
            for each, tensor in zip(same.values(), passed):
                for _, at in each:
                    values[at] = tensor
        return entered, (tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :])))

    def leave(self, call: Any, entered: Any, output: Any) -> None:
        if entered is None or not _recording():
            return
        outputs = list(tensors_in(output))
        hooked = [(index, self._hooked(entered.entered_at, tensor)) for index, tensor in enumerate(outputs)]
        watched = [(index, calls) for index, calls in hooked if calls is not None]
        if not watched:
            return
        watch = entered.watch = entered.kind(call, entered.entered_at, len(outputs), len(watched), entered.inputs)
        watch.crossings = watch.crossings_left = entered.passed
        for index, calls in watched:
            calls.append((watch, index))

    def _hooked(self, entered_at: int, tensor: Tensor) -> list[tuple[ModuleWatch, int]] | None:
        """The calls that returned `tensor`, which its hook serves; ``None`` where it takes no gradient."""
        hooked: list[tuple[ModuleWatch, int]] | None = getattr(tensor, self._hooked_in, None)
        if hooked is None and tensor.dtype in DIFFERENTIABLE:
            calls = HookedCalls()
            number = _hook(tensor, functools.partial(guarded, self._listener, calls, self._output_gradient, calls))
            if number is not None:
                setattr(tensor, self._hooked_in, calls)
                self._hooks.append((entered_at, weakref.ref(tensor), number))
                hooked = calls
        return hooked

    # --- backward

    def in_collected_pass(self) -> bool:
        return bool(self._open)

    def defer(self, report: Callable[[], None]) -> None:
        if self._open:
            self._deferred.append(report)
        else:
            report()

    def _report_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for report in deferred:
            report()

    def _output_gradient(self, hooked: list[tuple[ModuleWatch, int]], gradient: Any) -> None:
        # Several calls can return the same tensor; the outermost was added last and is entered first.
        for watch, index in reversed(hooked):
            self._end_loose(watch)
            if watch.backward is None:
                if not watch.begin(self._listener):
                    continue
                self._open.append(watch)
                if self._lowest is None or watch.entered_at < self._lowest:
                    self._lowest = watch.entered_at
            watch.outputs_left -= 1
            watch.gradient(self._listener, "input", index, gradient)
            self._end_early(watch)

    def _input_gradients(self, entered: _Entered, inputs: list[list[int]], gradients: Any) -> None:
        watch = entered.watch
        if watch is None or watch.backward is None:
            return
        self._end_loose(watch)
        for shared, gradient in zip(inputs, gradients):
            if gradient is not None:
                watch.received = True
                for index in shared:
                    watch.gradient(self._listener, "output", index, gradient)
        watch.crossings_left -= 1
        if watch.crossings_left <= 0:
            self._complete(watch)

    def _end_early(self, watch: ModuleWatch) -> None:
        if watch.nothing_left():
            self._complete(watch)

    def _end_loose(self, current: ModuleWatch) -> None:
        """End primitives of which no more gradients will come: something else is at work now."""
        for watch in [watch for watch in self._open if isinstance(watch, PrimitiveWatch) and watch is not current]:
            self._complete(watch)

    def _complete(self, watch: ModuleWatch) -> None:
        self._open.remove(watch)
        if self._deferred and not watch.ends_early:
            self._report_deferred()
        watch.end(self._listener)
        watch.reset()

    def finish(self) -> None:
        """Report what is open: calls none of whose inputs took a gradient, outermost first."""
        early = [watch for watch in self._open if watch.ends_early]
        late = [watch for watch in self._open if not watch.ends_early]
        for watch in early + sorted(late, key=lambda watch: watch.entered_at):
            guarded(self._listener, watch.call, self._complete, watch)
        self._open.clear()
        self._report_deferred()
        if self._lowest is not None:
            self._release(self._lowest)
            self._lowest = None

    def forget(self) -> None:
        self._release(0)
        self._lowest = None

    def _release(self, lowest: int) -> None:
        """Let go of what belongs to calls entered from `lowest` on, whose backward is over."""
        for _, tensor, number in [hook for hook in self._hooks if hook[0] >= lowest]:
            _remove_hook(number)
            held = tensor()
            if held is not None and hasattr(held, self._hooked_in):
                delattr(held, self._hooked_in)
        self._hooks = [hook for hook in self._hooks if hook[0] < lowest]


# --- tracker


class NodeTracker:
    """Implements `probe.backends.mindspore.gradient_graph.Tracker` with hooks on nodes of the gradient graph."""

    def __init__(self, listener: Listener) -> None:
        self._graph = MindSporeGraph(listener)
        self._tracker = BackwardTracker(listener, self._graph)
        self.in_collected_pass = self._tracker.in_collected_pass
        self.defer = self._tracker.defer
        self.finish = self._tracker.finish
        self.forget = self._tracker.forget

    def enter(self, kind: type[ModuleWatch], about: Any, arguments: Arguments) -> tuple[Any, Arguments]:
        find = self._graph.input_edges if kind is ModuleWatch else self._graph.direct_edges
        return (kind, *self._tracker.inputs_as(find, about, *arguments)), arguments

    def leave(self, call: Any, entered: Any, output: Any) -> None:
        if entered is None:
            return
        kind, number, inputs = entered
        self._tracker.watch(kind, call, number, inputs, output)


def tracker_for(listener: Listener) -> Tracker:
    """The way that this MindSpore allows."""
    if HAS_NODES:
        return NodeTracker(listener)

    return IdentityTracker(listener)
