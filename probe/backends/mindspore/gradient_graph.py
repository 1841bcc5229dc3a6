"""MindSpore's gradient graph, as the shared backward tracker walks it; from 2.7.2 on, where nodes can be had."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Callable

import mindspore as ms
from mindspore import Tensor
from typing_extensions import Protocol

from probe.backends.mindspore.guards import guarded
from probe.backends.mindspore.internals import executor, no_grad, register_hook, remove_hook
from probe.backends.shared.gradient_graph import LEAF_NUMBER, CallWatch, GradientEdge, ModuleWatch, ReturnedView
from probe.common.containers import found_in
from probe.common.interfaces import Listener

DIFFERENTIABLE = frozenset((ms.float16, ms.bfloat16, ms.float32, ms.float64, ms.complex64, ms.complex128))
"""Types whose tensors can have a gradient."""

_add = Tensor.__add__
_number_of: Callable[[Any], int] = operator.methodcaller("_sequence_nr")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in containers and dataclasses, in order."""
    return found_in(value, Tensor)


class MindSporeGraph:
    """Implements `probe.backends.shared.gradient_graph.GradientGraph`.

    Python sees a node through a new object each time; the first one seen stands for it, and keeps it alive, until the
    pass it takes part in is over, or the step.
    """

    without_gradient_last = True

    def __init__(self, listener: Listener) -> None:
        # Bound here: what stands before the guard would be outside of it.
        self.guarded: Callable[..., Any] = functools.partial(guarded, listener)
        self._nodes: dict[Any, Any] = {}
        self._metadata: dict[int, dict[str, Any]] = {}
        self._leaves: dict[int, Tensor] = {}
        """Tensors that a call returned as it got them, by the identity of their node, which itself takes no hooks."""
        self._leaf_hooks: list[int] = []
        self._last_number = -1
        """The highest number seen so far; numbers never begin anew in a process."""
        self.recording: Callable[[], bool] = executor.requires_grad
        self.number = _number_of
        # Before 2.8 a pass has no number; there is one at a time then.
        self.current_pass: Callable[[], int] = getattr(executor, "get_current_autodiff_engine_id", lambda: 0)

    # --- edges

    def _edge(self, tensor: Tensor) -> GradientEdge:
        node = tensor._grad_node
        return None if node is None else (self._same(node), tensor._output_index)

    def _same(self, node: Any) -> Any:
        # Without an identity of its own (before 2.9) a node has a number, and a leaf, which has none, a name.
        key = node._unique_id() if hasattr(node, "_unique_id") else (node._sequence_nr(), node.name())
        return self._nodes.setdefault(key, node)

    def input_edges(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[GradientEdge]:
        """One for each tensor, those inside containers included."""
        return [self._edge(tensor) for tensor in (*tensors_in(args), *tensors_in(kwargs))]

    def direct_edges(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[GradientEdge]:
        """`input_edges` for the call of a function: only of tensors that are arguments themselves."""
        return [self._edge(tensor) for tensor in (*args, *kwargs.values()) if isinstance(tensor, Tensor)]

    def writes(self, inputs: list[GradientEdge]) -> None:
        """A tensor that was written to is looked up by what the call returned, like any other."""

    def output_edges(self, output: Any, inputs: list[GradientEdge]) -> list[GradientEdge]:
        tensors = list(tensors_in(output))
        edges = [self._edge(tensor) for tensor in tensors]
        for tensor, edge in zip(tensors, edges):
            if edge is not None:
                number = _number_of(edge[0])
                if number >= LEAF_NUMBER:
                    self._leaves[id(edge[0])] = tensor
                elif self._last_number < number:
                    self._last_number = number
        return edges

    def returned_views(self, output: Any, inputs: list[GradientEdge]) -> Sequence[ReturnedView]:
        """MindSpore does not tell which tensor a view is of."""
        return ()

    def entry_number(self, inputs: list[GradientEdge]) -> int:
        """MindSpore does not tell the next number, but it is higher than that of every input and output seen so far."""
        for edge in inputs:
            if edge is not None:
                number = _number_of(edge[0])
                if self._last_number < number < LEAF_NUMBER:
                    self._last_number = number
        return self._last_number + 1

    # --- nodes

    def next_edges(self, node: Any) -> list[tuple[Any, int]]:
        same = self._same
        return [(None if found is None else same(found), slot) for found, slot in node.next_functions]

    def metadata(self, node: Any) -> dict[str, Any]:
        return self._metadata.setdefault(id(node), {})

    def hold(self, node: Any) -> None:
        """Every node seen is held."""

    def forget(self) -> None:
        self._nodes.clear()
        self._metadata.clear()
        self._leaves.clear()
        hooks, self._leaf_hooks = self._leaf_hooks, []
        for number in hooks:
            remove_hook(number)

    def walked(self, nodes: Collection[Any]) -> None:
        """Do nothing: MindSpore needs no record of the walked nodes."""

    def register_prehook(self, node: Any, callback: Callable[[Sequence[Any]], None]) -> None:
        leaf = self._leaves.get(id(node))
        if leaf is None:
            node.register_prehook(callback)
        else:
            self._leaf_hooks.append(register_hook(leaf, lambda gradient: callback((gradient,))))

    def register_posthook(self, node: Any, callback: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        node.register_hook(callback)

    def release(self, number: int) -> None:
        # Leaves stay: they may be inputs of a cell around this pass, whose forward is not over.
        for key, node in list(self._nodes.items()):
            if number <= _number_of(node) < LEAF_NUMBER:
                del self._nodes[key]
                self._metadata.pop(id(node), None)

    # --- passes

    def current_number(self) -> int | None:
        return None

    def at_end_of_pass(self, callback: Callable[[], None]) -> None:
        executor.queue_backward_final_callback(callback)

    def add(self, one: Any, other: Any) -> Any:
        with no_grad():
            return _add(one, other)


# --- interface


Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class PrimitiveWatch(CallWatch):
    """The backward of a primitive.

    By contract its record lists the gradients in the order in which the engine computes them, which is that of the
    outputs and of the arguments from the last to the first, and has no entries for what has no gradient.
    """

    __slots__ = ()

    def end(self, listener: Listener) -> None:
        outputs, inputs = (
            [gradient for gradient in reversed(self.backward[field]) if gradient is not None]
            for field in ("input", "output")
        )
        listener.backward_api(self.call, outputs, inputs)


class Tracker(Protocol):
    """Reports the backward of calls to a listener."""

    def enter(self, kind: type[ModuleWatch], about: Any, arguments: Arguments) -> tuple[Any, Arguments]:
        """Call before a forward. Returns what `leave` needs, and the arguments to go on with."""

    def leave(self, call: Any, entered: Any, output: Any) -> None:
        """Call after the forward: its backward will be reported, unless `entered` is ``None``."""

    def in_collected_pass(self) -> bool:
        """True if the backward that runs now is, among others, that of a call that was collected."""

    def defer(self, report: Callable[[], None]) -> None:
        """Call `report` right before the next module's backward is complete, or at the end of the pass."""

    def finish(self) -> None:
        """Report whatever is still open."""

    def forget(self) -> None:
        """The step is over; no gradient of it will be reported."""
