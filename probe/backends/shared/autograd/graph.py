"""What `probe.backends.shared.autograd.backward_tracker` asks of a framework's gradient graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

from typing_extensions import Protocol, TypeAlias

from probe.common.view_backward import ViewBackward

Edge: TypeAlias = tuple[Any, int]
"""A gradient node and the number of its output (forward output, so gradient input) that a tensor is."""
Cut: TypeAlias = Callable[[Any], Any]
"""Takes a tensor's part out of a gradient of the larger tensor it lies in; two that take the same part are equal."""
Place: TypeAlias = Optional[Union[Edge, tuple[Any, int, Cut]]]
"""The edge of a tensor, or that of the tensor it lies in with its part of it; ``None`` where a tensor takes no gradient
and has a place in the record all the same."""

FindPlaces: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], list[Place]]

LEAF_NUMBER = 1 << 62
"""Nodes of leaves have this number or a higher one, and say nothing about the order of the others."""


class Writes(NamedTuple):
    """What a call wrote in place to tensors it was given."""

    before: list[tuple[int, Place]]
    """For each input that it wrote to, where the gradient of what was there before arrives, besides its own place."""
    after: list[Edge]
    """Where the gradients of what is there now arrive, whether the call returned these tensors or not."""


class Origin(NamedTuple):
    """The tensor that a call made and whose view is all that it returned. Once it is written to, all its gradient
    arrives there and little or none of it at the view's place."""

    place: tuple[Any, int, Cut]
    untouched: Callable[[], bool]
    """Whether it was not written to since."""
    written: Callable[[], bool]
    """Whether it was."""


class Graph(Protocol):
    """A framework's gradient graph. Nodes are compared by identity."""

    without_gradient_last: bool
    """Whether backwards still open at the end of a pass that got no gradient of an input end last, outermost first."""

    def recording(self) -> bool:
        """Whether operations are being recorded for a gradient."""

    def input_places(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Place]:
        """The places of a call's inputs."""

    def writes(self, inputs: list[Place]) -> Writes | None:
        """What the call wrote to the tensors whose places `inputs` are, as `input_places` returned them."""

    def output_places(self, output: Any, inputs: list[Place]) -> list[Place]:
        """The places of what it returned; asked after `writes`."""

    def origin(self, output: Any, entered_at: int) -> Origin | None:
        """Of what a call returned that began at `entered_at`."""

    def watch_views(self, output: Any, inputs: list[Place], watch: Callable[[int, int | None], ViewBackward]) -> None:
        """Have the views among the outputs of a call that has no origin watched for writes: `watch` gives the backward
        of the one with an index, which is a view of the input with another, or of none.
        """

    def entry_number(self, inputs: list[Place]) -> int:
        """A sequence number that no node of the call about to begin is below, and each earlier one is."""

    def following(self, node: Any) -> Sequence[tuple[Any, int]]:
        """The edges along which `node` sends gradients on, one for each of its forward inputs; ``None`` for no node."""

    def walked(self, nodes: Collection[Any]) -> None:
        """These nodes, and ``None``, were walked over, in any order."""

    def number(self, node: Any) -> int:
        """The node's sequence number."""

    def notes(self, node: Any) -> dict[str, Any]:
        """What was noted at a node, kept for as long as it may still run; others may keep something there too."""

    def hold(self, node: Any) -> None:
        """Keep a leaf's node, and what is noted there, until `forget`."""

    def forget(self) -> None:
        """The step is over; no gradient of it will be reported."""

    def on_arrival(self, node: Any, receive: Callable[[Sequence[Any]], None]) -> None:
        """Call `receive` with the gradients of the node's outputs before it runs."""

    def on_departure(self, node: Any, receive: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        """Call `receive` with the gradients of its inputs, and of its outputs, after it has run."""

    def current_pass(self) -> int:
        """The number of the backward pass under way on this thread, -1 outside of one."""

    def current_number(self) -> int | None:
        """The number of the node that runs now, where that is known."""

    def at_end_of_pass(self, call: Callable[[], None]) -> None:
        """Call once when the pass under way is over."""

    def release(self, number: int) -> None:
        """A pass is over that ran nodes with sequence numbers from `number` on; they will not run again."""

    def add(self, one: Any, other: Any) -> Any:
        """The sum of two gradients."""

    def safely(self, about: Any, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(*args)` unseen, and report a failure instead of raising it."""
