"""PyTorch's gradient graph, as `probe.backends.shared.autograd.backward_tracker` walks it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Callable

import torch

from probe.backends.shared.autograd.graph import Edge, GradientEdge, ReturnedView, Writes
from probe.backends.shared.autograd.node_hooks import PostHook, PreHook, key_of
from probe.backends.torch import internals
from probe.backends.torch.autograd.call_inputs import CallInputs
from probe.backends.torch.autograd.graph_release import FreedInTurn
from probe.backends.torch.autograd.tensor_edges import edge_or_none, gradient_edge, part_of_whole, whole_of
from probe.backends.torch.autograd.views import has_lost_its_node, write_check
from probe.backends.torch.guards import guarded, skipped
from probe.backends.torch.originals import functions, own
from probe.common.containers import found_in
from probe.common.interfaces import Listener

for _hook in (PreHook, PostHook):
    # A compiled program that calls `backward` itself would compile them, anew for each.
    skipped(_hook.__call__)

_Tensor = torch.Tensor
_next_sequence_number = internals.next_sequence_number
_current_node = internals.current_node
_queue_callback = internals.queue_callback


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors that take a gradient, in containers and dataclasses, in order."""
    return (tensor for tensor in found_in(value, _Tensor) if tensor.requires_grad)


class TorchGraph:
    """Implements `probe.backends.shared.autograd.graph.Graph`."""

    without_gradient_last = False

    def __init__(self, listener: Listener) -> None:
        # Bound here so that the hot path calls them directly.
        self.guarded: Callable[..., Any] = functools.partial(guarded, listener)
        self.recording: Callable[[], bool] = torch.is_grad_enabled
        self.current_pass: Callable[[], int] = internals.current_pass
        self.next_edges: Callable[[Any], Sequence[Edge]] = operator.attrgetter("next_functions")
        self.number: Callable[[Any], int] = operator.methodcaller("_sequence_nr")
        # A leaf holds its accumulation node weakly; the metadata of one would be lost before the backward.
        self._leaves: set[Any] = set()
        self.freed_in_turn = FreedInTurn()
        self.walked: Callable[[Collection[Any]], None] = self.freed_in_turn.all_seen

    def input_edges(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[GradientEdge]:
        edges = CallInputs(args, kwargs)
        for value in args:
            if isinstance(value, _Tensor):
                if value.requires_grad:
                    edges.add(value)
            else:
                for tensor in tensors_in(value):
                    edges.add(tensor)
        if kwargs:
            for tensor in tensors_in(kwargs):
                edges.add(tensor)
        return edges

    def writes(self, inputs: list[GradientEdge]) -> Writes | None:
        return inputs.writes() if isinstance(inputs, CallInputs) else None

    def output_edges(self, output: Any, inputs: list[GradientEdge]) -> list[GradientEdge]:
        if isinstance(output, _Tensor):
            return [self._output_edge(output, inputs)] if output.requires_grad else []
        return [self._output_edge(tensor, inputs) for tensor in tensors_in(output)]

    def _output_edge(self, tensor: torch.Tensor, inputs: list[GradientEdge]) -> GradientEdge:
        if not own._is_view(tensor):
            return gradient_edge(tensor)
        given = inputs if isinstance(inputs, CallInputs) else None
        # Where the call wrote to a view, its node is that of the whole tensor, through which all later uses go.
        if given is not None and any(tensor is view for view in given.written_views):
            return part_of_whole(tensor)
        edge = edge_or_none(tensor)
        if edge is not None:
            return edge
        part = part_of_whole(tensor)
        if given is not None:
            for at, one in enumerate(given.tensors):
                if one is tensor:
                    # Returned as it came.
                    given[at] = part
        return part

    def returned_views(self, output: Any, inputs: list[GradientEdge]) -> Sequence[ReturnedView]:
        if isinstance(output, _Tensor) and not own._is_view(output):
            return ()
        given, written = (inputs.tensors, inputs.written_views) if isinstance(inputs, CallInputs) else ((), ())
        views: list[ReturnedView] = []
        for index, tensor in enumerate(tensors_in(output)):
            # The edge of a view that the call wrote to is that of the whole tensor, which gets all of the gradient.
            if not own._is_view(tensor) or any(tensor is view for view in written) or has_lost_its_node(tensor):
                continue
            is_written = write_check(tensor)
            if is_written is not None:
                whole = tensor._base
                same_memory = [at for at, one in enumerate(given) if whole_of(one) is whole]
                views.append(ReturnedView(index, same_memory, is_written))
        return views

    def entry_number(self, inputs: list[GradientEdge]) -> int:
        number: int = _next_sequence_number()
        return number

    def metadata(self, node: Any) -> dict[str, Any]:
        # The node keeps it exactly as long as it lives.
        metadata: dict[str, Any] = node.metadata
        return metadata

    def hold(self, node: Any) -> None:
        self._leaves.add(node)

    def forget(self) -> None:
        self._leaves.clear()

    def register_prehook(self, node: Any, callback: Callable[[Sequence[Any]], None]) -> None:
        self.freed_in_turn.seen(node)
        node.register_prehook(callback)

    def register_posthook(self, node: Any, callback: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        self.freed_in_turn.seen(node)
        node.register_hook(callback)

    def current_number(self) -> int | None:
        node = _current_node()
        return None if node is None else self.number(node)

    def at_end_of_pass(self, callback: Callable[[], None]) -> None:
        # If this is not available, the work is done at the end of the step.
        if _queue_callback is not None:
            _queue_callback(callback)

    def release(self, number: int) -> None:
        # A node keeps its metadata itself, and may run again where the graph is retained. But a leaf whose node is held
        # could not be given memory of another shape, and would stay.
        key = key_of(PreHook, self)
        run = [leaf for leaf in list(self._leaves) if not leaf.metadata.get(key)]
        self._leaves.difference_update(run)

    def add(self, one: Any, other: Any) -> Any:
        return functions.add(one, other)
