"""PyTorch's gradient graph, as `probe.backends.shared.autograd.backward_tracker` walks it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Callable

import torch

from probe.backends.shared.autograd.graph import Edge, GradientEdge, ReturnedView, Writes
from probe.backends.shared.autograd.node_hooks import PostHook, PreHook
from probe.backends.torch.autograd.graph_release import FreedInTurn
from probe.backends.torch.autograd.strides import Layout
from probe.backends.torch.autograd.views import WRITTEN, Part, can_be_cut, has_lost_its_node, write_check
from probe.backends.torch.autograd.written_region import written_region
from probe.backends.torch.guards import guarded, skipped
from probe.common.containers import found_in
from probe.common.interfaces import Listener

for _hook in (PreHook, PostHook):
    # A compiled program that calls `backward` itself would compile them, anew for each.
    skipped(_hook.__call__)

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
    """Tensors that take a gradient, in containers and dataclasses, in order."""
    return (tensor for tensor in found_in(value, _Tensor) if tensor.requires_grad)


def _edge(tensor: torch.Tensor) -> Edge | None:
    """`gradient_edge`, and ``None`` for a view that has no node any more."""
    if not tensor._is_view():
        return gradient_edge(tensor)
    try:
        return None if has_lost_its_node(tensor) else gradient_edge(tensor)
    except RuntimeError:
        return None  # made without recording of what was written to since: torch gives it no node again


def _whole(tensor: torch.Tensor) -> Any:
    return tensor._base if tensor._is_view() else tensor


def _part(view: torch.Tensor) -> tuple[Any, int, Part]:
    node, slot = gradient_edge(_whole(view))
    return node, slot, Part.of(view)


class _Inputs(list[GradientEdge]):
    """The gradient edges of a call's inputs, and what is needed to see afterwards which of them it wrote to."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self.before: list[tuple[Any, int]] = []
        """The gradient node of each of `tensors`, or of the one it is a view of, and the number of its output there."""
        self.others = [
            value for value in (*args, *kwargs.values()) if isinstance(value, _Tensor) and not value.requires_grad
        ]
        """Arguments that take no gradient, and will where something is written to them that does."""
        self.written_views: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> None:
        whole = _whole(tensor)
        self.append(_edge(tensor))
        self.tensors.append(tensor)
        self.before.append((whole.grad_fn, whole.output_nr))

    def written(self) -> tuple[list[int], list[int]]:
        """Which of the tensors were written to, as far as the graph tells; and of which only another part was."""
        changed = [at for at, tensor in enumerate(self.tensors) if _whole(tensor).grad_fn is not self.before[at][0]]
        elsewhere = [at for at in changed if _is_only_write_elsewhere(self.tensors[at], self.before[at][0])]
        found = [at for at in changed if at not in elsewhere]
        if len(found) < 2:
            return found, elsewhere
        # One of several views of a tensor changes the node of it for all.
        wholes = [id(_whole(self.tensors[at])) for at in found]
        shared = {at for at, whole in zip(found, wholes) if wholes.count(whole) > 1}
        direct = [at for at in shared if _written_last(self.tensors[at])]
        return [at for at in found if at not in shared or not direct or at in direct], elsewhere


def _is_only_write_elsewhere(view: torch.Tensor, before: Any) -> bool:
    """Whether there was one write since the tensor of a view had the node `before`, to another part of it."""
    whole = _whole(view)
    write: Any = whole.grad_fn
    if whole is view or write is None or not write.name().endswith(WRITTEN) or not can_be_cut(whole):
        return False
    if write.next_functions[0][0] is not before or _written_last(view):
        return False
    region = written_region(write, Layout.of(whole))
    return region is not None and Layout.of(view).overlaps(region) is False


def _written_last(tensor: torch.Tensor) -> bool:
    """Whether the last write to the memory of `tensor` went through it and no other view."""
    if tensor._is_view() and has_lost_its_node(tensor):
        return False
    node: Any = tensor.grad_fn
    if node is None:
        return False  # detached
    if not tensor._is_view():
        return not node.name().endswith(WRITTEN)
    # torch makes the view's new node right after that of the write.
    return bool(node._sequence_nr() == _whole(tensor).grad_fn._sequence_nr() + 1)


class TorchGraph:
    """Implements `probe.backends.shared.autograd.graph.Graph`."""

    without_gradient_last = False

    def __init__(self, listener: Listener) -> None:
        # Bound here so that the hot path calls them directly.
        self.guarded: Callable[..., Any] = functools.partial(guarded, listener)
        self.recording: Callable[[], bool] = torch.is_grad_enabled
        self.current_pass: Callable[[], int] = torch._C._current_graph_task_id
        self.next_edges: Callable[[Any], Sequence[Edge]] = operator.attrgetter("next_functions")
        self.number: Callable[[Any], int] = operator.methodcaller("_sequence_nr")
        # A leaf holds its accumulation node weakly; the metadata of one would be lost before the backward.
        self._leaves: set[Any] = set()
        self.freed_in_turn = FreedInTurn()
        self.walked: Callable[[Collection[Any]], None] = self.freed_in_turn.all_seen

    def input_edges(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[GradientEdge]:
        edges = _Inputs(args, kwargs)
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
        if not isinstance(inputs, _Inputs):
            return None
        tensors = inputs.tensors
        written, elsewhere = inputs.written()
        filled = [tensor for tensor in inputs.others if tensor.requires_grad and _whole(tensor).grad_fn is not None]
        for at, edge in enumerate(inputs):
            if edge is None and at not in written:
                # Its node was made inside of the call, if the call used it.
                inputs[at] = _edge(tensors[at])
        # What was used after the write has another node.
        again = [(at, _edge(tensors[at])) for at in elsewhere]
        again = [(at, edge) for at, edge in again if edge is not None and edge != inputs[at]]
        if not written and not filled and not again:
            return None
        views = [at for at in written if tensors[at]._is_view()]
        inputs.written_views = [tensor for tensor in (*(tensors[at] for at in views), *filled) if tensor._is_view()]
        before: list[tuple[int, GradientEdge]] = [
            (at, (*inputs.before[at], Part.of(tensors[at]))) for at in views if inputs.before[at][0] is not None
        ]
        now = [_whole(tensor) for tensor in (*(tensors[at] for at in written), *filled)]
        return Writes([*before, *again], [gradient_edge(whole) for whole in now if whole.requires_grad])

    def output_edges(self, output: Any, inputs: list[GradientEdge]) -> list[GradientEdge]:
        if isinstance(output, _Tensor):
            return [self._output_edge(output, inputs)] if output.requires_grad else []
        return [self._output_edge(tensor, inputs) for tensor in tensors_in(output)]

    def _output_edge(self, tensor: torch.Tensor, inputs: list[GradientEdge]) -> GradientEdge:
        if not tensor._is_view():
            return gradient_edge(tensor)
        given = inputs if isinstance(inputs, _Inputs) else None
        # Where the call wrote to a view, its node is that of the whole tensor, through which all later uses go.
        if given is not None and any(tensor is view for view in given.written_views):
            return _part(tensor)
        edge = _edge(tensor)
        if edge is not None:
            return edge
        part = _part(tensor)
        if given is not None:
            for at, one in enumerate(given.tensors):
                if one is tensor:
                    # Returned as it came.
                    given[at] = part
        return part

    def returned_views(self, output: Any, inputs: list[GradientEdge]) -> Sequence[ReturnedView]:
        if isinstance(output, _Tensor) and not output._is_view():
            return ()
        given, written = (inputs.tensors, inputs.written_views) if isinstance(inputs, _Inputs) else ((), ())
        views: list[ReturnedView] = []
        for index, tensor in enumerate(tensors_in(output)):
            # The edge of a view that the call wrote to is that of the whole tensor, which gets all of the gradient.
            if not tensor._is_view() or any(tensor is view for view in written) or has_lost_its_node(tensor):
                continue
            is_written = write_check(tensor)
            if is_written is not None:
                whole = tensor._base
                same_memory = [at for at, one in enumerate(given) if _whole(one) is whole]
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
        torch.autograd.Variable._execution_engine.queue_callback(callback)

    def release(self, number: int) -> None:
        # A node keeps its metadata itself, and may run again where the graph is retained. But a leaf whose node is held
        # could not be given memory of another shape, and would stay.
        run = [leaf for leaf in list(self._leaves) if not leaf.metadata.get(PreHook.key)]
        self._leaves.difference_update(run)

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
