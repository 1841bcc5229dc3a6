"""What the backward tracker notes at nodes of the gradient graph, and the hooks that act on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.backends.shared.autograd.backward_tracker import GradientFlow
    from probe.backends.shared.autograd.graph import Graph


class Noted(list[Any]):
    """What was noted at a node: calls with what to do for them."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Of the call that a failure at this node is logged with."""
        return getattr(self[-1][0].call, "name", "") if self else ""


class NodeHook(Noted):
    """What was noted at a gradient node, as the hook that acts on it.

    The graph holds it until its backward, where Python's garbage collector looks at each object again and again: one
    here takes the place of a partial, its arguments, a method and two lists (benchmarks/RESULTS.md has the cost).
    """

    __slots__ = ("flow", "number")
    key = ""
    """Where a node has it among its notes, which others may use too."""
    # Of two hooks that have noted nothing yet, one is not the other.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, flow: GradientFlow, number: int) -> None:
        super().__init__()
        self.flow = flow
        self.number = number
        """The node's."""

    def register(self, graph: Graph, node: Any) -> None:
        """Have `graph` call this when `node` runs."""
        raise NotImplementedError


class ArrivalHook(NodeHook):
    """Of calls that returned an output of the node: called before it runs.

    Of each it holds the watch, its arrivals, and what to ask whether they come here, ``None`` where they always do.
    """

    __slots__ = ()
    key = "msprobe arrivals"

    def register(self, graph: Graph, node: Any) -> None:
        graph.on_arrival(node, self)

    def __call__(self, gradients: Sequence[Any]) -> None:
        self.flow.safely(self, self.flow.arrived, self, gradients)


class DepartureHook(NodeHook):
    """Of calls with an input that the node sends a gradient to: called after it has run.

    Of each it holds the watch and what of the input's gradient leaves here.
    """

    __slots__ = ()
    key = "msprobe departures"

    def register(self, graph: Graph, node: Any) -> None:
        graph.on_departure(node, self)

    def __call__(self, flowing: Sequence[Any], arrived: Sequence[Any]) -> None:
        self.flow.safely(self, self.flow.crossed, self, flowing)
