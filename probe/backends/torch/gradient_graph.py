"""PyTorch's gradient graph, as `probe.backends.shared.backward_tracker` walks it."""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Callable

import torch

from probe.backends.shared.gradient_graph import Edge, GradientEdge, PostHook, PreHook, ReturnedView, Writes, key_of
from probe.backends.torch import internals
from probe.backends.torch.guards import guarded, skipped
from probe.backends.torch.originals import functions, own
from probe.backends.torch.views import (
    CallInputs,
    edge_or_none,
    gradient_edge,
    has_lost_its_node,
    part_of_whole,
    whole_of,
    write_check,
)
from probe.common.containers import found_in
from probe.common.interfaces import Listener

_REST = "msprobe rest"
"""Under which a node keeps what is behind it."""
_NODES = (8, 24)
"""The least and the most nodes from one that keeps what is behind it to the next. They vary, so that it is not the same
operation of a loop each time, which need not be on the way from one pass through it to the next."""
_TUPLES = 24
"""Tuples of nodes that are made and let go; a guess that served for the programs of the tests."""


class FreedInTurn:
    """Counts the nodes that Python has seen."""

    def __init__(self) -> None:
        self._draw = random.Random(0)
        self._left = 0

    def seen(self, node: Any) -> None:
        self._left -= 1
        if self._left < 0:
            self._left = self._draw.randint(*_NODES)
            _keep_rest(node)

    def all_seen(self, nodes: Collection[Any]) -> None:
        """Note that many nodes were seen, in any order; ``None`` is no node."""
        left, count = self._left, len(nodes)
        if count > left:
            each = iter(nodes)
            while count > left:
                node = next(itertools.islice(each, left, None))
                count -= left + 1
                left = self._draw.randint(*_NODES)
                if node is not None:
                    _keep_rest(node)
        self._left = left - count


def _keep_rest(node: Any) -> None:
    metadata = node.metadata
    if _REST in metadata:
        return
    rest = tuple(following for following, _ in node.next_functions)
    for _ in range(_TUPLES):
        rest = (rest,)
    metadata[_REST] = rest


for _hook in (PreHook, PostHook):
    # A compiled program that calls `backward` itself would compile them, anew for each.
    skipped(_hook.__call__)


# --- graph


_Tensor = torch.Tensor
_next_sequence_number = internals.next_sequence_number
_current_node = internals.current_node
_queue_callback = internals.queue_callback


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors that take a gradient, in containers and dataclasses, in order."""
    return (tensor for tensor in found_in(value, _Tensor) if tensor.requires_grad)


class TorchGraph:
    """Implements `probe.backends.shared.gradient_graph.GradientGraph`."""

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
