"""The interface of a framework's gradient graph to `probe.backends.shared.autograd.backward_tracker`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

from typing_extensions import Protocol, TypeAlias

Edge: TypeAlias = tuple[Any, int]
"""A gradient node, and the number of the output of it (of the forward, so a gradient input) that a tensor is."""
Cut: TypeAlias = Callable[[Any], Any]
"""Takes a tensor's part out of a gradient of the larger tensor it lies in; two that take the same part are equal."""
GradientEdge: TypeAlias = Optional[Union[Edge, tuple[Any, int, Cut]]]
"""The edge of a tensor, or that of the tensor it lies in with its part of it; ``None`` for a tensor that takes no
gradient and is listed in the record all the same."""
FindEdges: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], list[GradientEdge]]
"""Finds the gradient edges of a call's inputs."""

LEAF_NUMBER = 1 << 62
"""Nodes of leaves have this number or a higher one, and say nothing about the order of the others."""


class Writes(NamedTuple):
    """The writes of a call, in place, to tensors it was given."""

    before: list[tuple[int, GradientEdge]]
    """For each input that it wrote to, the edge of what was there before, besides the input's own edge."""
    after: list[Edge]
    """The edges of what is there now, whether the call returned these tensors or not."""


class ReturnedView(NamedTuple):
    """A view that a call returned. Once its memory is written to, only a part of its gradient reaches its edge."""

    output: int
    """The number of the tensor among the outputs."""
    inputs: Sequence[int]
    """The inputs that are views of the same tensor, or that tensor: parts of their gradients pass through this view."""
    is_written: Callable[[], bool]
    """True if its memory was written to since the call."""


class GradientGraph(Protocol):
    """A framework's gradient graph. Nodes are compared by identity."""

    without_gradient_last: bool
    """True if backwards still open at the end of a pass that got no gradient of an input end last, outermost first."""

    def recording(self) -> bool:
        """True if operations are being recorded for a gradient."""

    def input_edges(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[GradientEdge]:
        """The gradient edges of a call's inputs."""

    def writes(self, inputs: list[GradientEdge]) -> Writes | None:
        """The writes of the call to the tensors with the edges `inputs`, which `input_edges` returned."""

    def output_edges(self, output: Any, inputs: list[GradientEdge]) -> list[GradientEdge]:
        """The gradient edges of what it returned; asked after `writes`."""

    def returned_views(self, output: Any, inputs: list[GradientEdge]) -> Sequence[ReturnedView]:
        """The views among what it returned whose edges do not get all of their gradient once they are written to."""

    def entry_number(self, inputs: list[GradientEdge]) -> int:
        """A sequence number that no node of the call about to begin is below, and each earlier one is."""

    def next_edges(self, node: Any) -> Sequence[tuple[Any, int]]:
        """The edges along which `node` sends gradients on, one for each of its forward inputs; ``None`` for no node."""

    def walked(self, nodes: Collection[Any]) -> None:
        """Note that these nodes, or ``None``, were walked over, in any order."""

    def number(self, node: Any) -> int:
        """The node's sequence number."""

    def metadata(self, node: Any) -> dict[str, Any]:
        """The dict kept with a node for as long as the node may still run; others may keep something there too."""

    def hold(self, node: Any) -> None:
        """Keep a leaf's node, and its metadata, until `forget`."""

    def forget(self) -> None:
        """The step is over; no gradient of it will be reported."""

    def register_prehook(self, node: Any, callback: Callable[[Sequence[Any]], None]) -> None:
        """Call `callback` with the gradients of the node's outputs before it runs."""

    def register_posthook(self, node: Any, callback: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        """Call `callback` with the gradients of its inputs, and of its outputs, after it has run."""

    def current_pass(self) -> int:
        """The number of the backward pass under way on this thread, -1 outside of one."""

    def current_number(self) -> int | None:
        """The number of the node that runs now, where that is known."""

    def at_end_of_pass(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the pass under way is over."""

    def release(self, number: int) -> None:
        """A pass is over that ran nodes with sequence numbers from `number` on; they will not run again."""

    def add(self, one: Any, other: Any) -> Any:
        """The sum of two gradients."""

    def guarded(self, about: Any, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(*args)` unobserved, and report a failure instead of raising it."""
