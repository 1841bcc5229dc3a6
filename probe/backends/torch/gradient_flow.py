"""PyTorch's gradient graph, as `probe.common.gradient_flow` walks it."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import torch

from probe.backends.torch.quiet import safely
from probe.common.contract import Listener
from probe.common.gradient_flow import Edge, Place

_NOTE = "msprobe"
"""Key in a node's own `metadata`; the node keeps what is noted there exactly as long as it lives."""

_Tensor = torch.Tensor
_next_sequence_number = torch._C._autograd._get_sequence_nr
_current_node = torch._C._current_autograd_node


def gradient_edge(tensor: torch.Tensor) -> Edge:
    """Where the gradient of a tensor that requires one arrives."""
    node = tensor.grad_fn
    if node is not None:
        return node, tensor.output_nr
    # Asking for a leaf's accumulation node takes a view of it, which needs autograd at work.
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        return torch.autograd.graph.get_gradient_edge(tensor).node, 0


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors that take a gradient, in containers and dataclasses of any depth, in order."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))


class TorchGraph:
    """Implements `probe.common.gradient_flow.Graph`."""

    without_gradient_last = False

    def __init__(self, listener: Listener) -> None:
        # Bound here so that the hot path calls them directly.
        self.safely: Callable[..., Any] = functools.partial(safely, listener)
        self.recording: Callable[[], bool] = torch.is_grad_enabled
        self.current_pass: Callable[[], int] = torch._C._current_graph_task_id
        self.following: Callable[[Any], Sequence[Edge]] = operator.attrgetter("next_functions")
        self.number: Callable[[Any], int] = operator.methodcaller("_sequence_nr")
        # A leaf holds its accumulation node weakly; what is noted on one would be lost before the backward.
        self._leaves: set[Any] = set()

    def input_places(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Place]:
        places: list[Place] = []
        for value in args:
            if isinstance(value, _Tensor):
                if value.requires_grad:
                    places.append(gradient_edge(value))
            else:
                places += map(gradient_edge, tensors_in(value))
        if kwargs:
            places += map(gradient_edge, tensors_in(kwargs))
        return places

    def output_places(self, output: Any) -> list[Place]:
        if isinstance(output, _Tensor):
            return [gradient_edge(output)] if output.requires_grad else []
        return [gradient_edge(tensor) for tensor in tensors_in(output)]

    def entry_number(self, inputs: list[Place]) -> int:
        number: int = _next_sequence_number()
        return number

    def notes(self, node: Any) -> dict[str, list[Any]]:
        notes: dict[str, list[Any]] | None = node.metadata.get(_NOTE)
        if notes is None:
            notes = node.metadata[_NOTE] = {}
        return notes

    def hold(self, node: Any) -> None:
        self._leaves.add(node)

    def forget(self) -> None:
        self._leaves.clear()

    def on_arrival(self, node: Any, receive: Callable[[Sequence[Any]], None]) -> None:
        node.register_prehook(receive)

    def on_departure(self, node: Any, receive: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        node.register_hook(receive)

    def current_number(self) -> int | None:
        node = _current_node()
        return None if node is None else self.number(node)

    def at_end_of_pass(self, call: Callable[[], None]) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(call)

    def release(self, number: int) -> None:
        """A node keeps its notes itself, and may run again where the graph is retained."""

    def add(self, one: Any, other: Any) -> Any:
        return torch.add(one, other)


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor of an output: first element recursively, first tensor value of a dictionary."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (list, tuple)) and value:
        return first_tensor(value[0])
    if isinstance(value, Mapping):
        return next((item for item in value.values() if isinstance(item, torch.Tensor)), None)
    return None
