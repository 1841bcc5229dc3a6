"""MindSpore's gradient graph, as the shared backward tracker walks it; from 2.7.2 on, where nodes can be had."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Callable

import mindspore as ms
from mindspore import Tensor
from mindspore._c_expression import TensorPy
from mindspore.common.api import _no_grad, _pynative_executor

from probe.backends.mindspore.guards import safely
from probe.backends.shared.autograd.graph import LEAF_NUMBER, Origin, Place
from probe.common.containers import found_in
from probe.common.interfaces import Listener
from probe.common.view_backward import ViewBackward

HAS_NODES = hasattr(TensorPy, "_grad_node") and hasattr(TensorPy, "_output_index")

DIFFERENTIABLE = frozenset((ms.float16, ms.bfloat16, ms.float32, ms.float64, ms.complex64, ms.complex128))
"""Types whose tensors can have a gradient."""

_add = Tensor.__add__
_number_of: Callable[[Any], int] = operator.methodcaller("_sequence_nr")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in containers and dataclasses, in order."""
    return found_in(value, Tensor)


class MindSporeGraph:
    """Implements `probe.backends.shared.autograd.graph.Graph`.

    Python sees a node through a new object each time; the first one seen stands for it, and keeps it alive, until the
    pass it takes part in is over, or the step.
    """

    without_gradient_last = True

    def __init__(self, listener: Listener) -> None:
        # Bound here: what stands before the guard would be outside of it.
        self.safely: Callable[..., Any] = functools.partial(safely, listener)
        self._nodes: dict[Any, Any] = {}
        self._notes: dict[int, dict[str, Any]] = {}
        self._leaves: dict[int, Tensor] = {}
        """Tensors that a call returned as it got them, by the identity of their node, which itself takes no hooks."""
        self._leaf_hooks: list[int] = []
        self._last_number = -1
        """The highest number seen so far; numbers never begin anew in a process."""
        self.recording: Callable[[], bool] = _pynative_executor.requires_grad
        self.number = _number_of
        # Before 2.8 a pass has no number; there is one at a time then.
        self.current_pass: Callable[[], int] = getattr(
            _pynative_executor, "get_current_autodiff_engine_id", lambda: 0
        )

    # --- places

    def _place(self, tensor: Tensor) -> Place:
        node = tensor._grad_node
        return None if node is None else (self._same(node), tensor._output_index)

    def _same(self, node: Any) -> Any:
        # Without an identity of its own (before 2.9) a node has a number, and a leaf, which has none, a name.
        key = node._unique_id() if hasattr(node, "_unique_id") else (node._sequence_nr(), node.name())
        return self._nodes.setdefault(key, node)

    def input_places(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Place]:
        """One for each tensor, inside of containers too."""
        return [self._place(tensor) for tensor in (*tensors_in(args), *tensors_in(kwargs))]

    def direct_places(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Place]:
        """The same for the call of a function: of tensors that are arguments themselves, not inside of containers."""
        return [self._place(tensor) for tensor in (*args, *kwargs.values()) if isinstance(tensor, Tensor)]

    def writes(self, inputs: list[Place]) -> None:
        """A tensor that was written to is looked up by what the call returned, like any other."""

    def output_places(self, output: Any, inputs: list[Place]) -> list[Place]:
        tensors = list(tensors_in(output))
        places = [self._place(tensor) for tensor in tensors]
        for tensor, place in zip(tensors, places):
            if place is not None:
                number = _number_of(place[0])
                if number >= LEAF_NUMBER:
                    self._leaves[id(place[0])] = tensor
                elif self._last_number < number:
                    self._last_number = number
        return places

    def origin(self, output: Any, entered_at: int) -> Origin | None:
        """MindSpore does not tell what a view lies in."""
        return None

    def watch_views(self, output: Any, inputs: list[Place], watch: Callable[[int, int | None], ViewBackward]) -> None:
        """MindSpore does not tell what a view lies in."""

    def entry_number(self, inputs: list[Place]) -> int:
        """MindSpore does not tell the next number, but it is higher than that of every input and output seen so far."""
        for place in inputs:
            if place is not None:
                number = _number_of(place[0])
                if self._last_number < number < LEAF_NUMBER:
                    self._last_number = number
        return self._last_number + 1

    # --- nodes

    def following(self, node: Any) -> list[tuple[Any, int]]:
        same = self._same
        return [(None if found is None else same(found), slot) for found, slot in node.next_functions]

    def notes(self, node: Any) -> dict[str, Any]:
        return self._notes.setdefault(id(node), {})

    def hold(self, node: Any) -> None:
        """Every node seen is held."""

    def forget(self) -> None:
        self._nodes.clear()
        self._notes.clear()
        self._leaves.clear()
        hooks, self._leaf_hooks = self._leaf_hooks, []
        for number in hooks:
            TensorPy.remove_hook(number)

    def walked(self, nodes: Collection[Any]) -> None:
        """What was seen makes no difference to MindSpore."""

    def on_arrival(self, node: Any, receive: Callable[[Sequence[Any]], None]) -> None:
        leaf = self._leaves.get(id(node))
        if leaf is None:
            node.register_prehook(receive)
        else:
            self._leaf_hooks.append(TensorPy.register_hook(leaf, lambda gradient: receive((gradient,))))

    def on_departure(self, node: Any, receive: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        node.register_hook(receive)

    def release(self, number: int) -> None:
        # Leaves stay: they may be inputs of a cell around this pass, whose forward is not over.
        for key, node in list(self._nodes.items()):
            if number <= _number_of(node) < LEAF_NUMBER:
                del self._nodes[key]
                self._notes.pop(id(node), None)

    # --- passes

    def current_number(self) -> int | None:
        return None

    def at_end_of_pass(self, call: Callable[[], None]) -> None:
        _pynative_executor.queue_backward_final_callback(call)

    def add(self, one: Any, other: Any) -> Any:
        with _no_grad():
            return _add(one, other)
