"""The backward of cells and functions.

Two ways, behind one interface. From MindSpore 2.7.2 on the nodes of the gradient graph can be had, and the walk that
is shared with other frameworks changes nothing in it. Before that there are only identity operations to put around a
call's inputs, which can change the order in which gradients are accumulated: see `identity_flow`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from typing_extensions import Protocol

from probe.backends.mindspore.gradient_graph import HAS_NODES, MindSporeGraph
from probe.common.contract import Listener
from probe.common.gradient_flow import CallWatch, GradientFlow, ModuleWatch

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class PrimitiveWatch(CallWatch):
    """The backward of a primitive.

    By contract its record lists the gradients in the order in which the engine computes them, which is that of the
    outputs and of the arguments from the last to the first, and has no places for what has no gradient.
    """

    __slots__ = ()

    def end(self, listener: Listener) -> None:
        outputs, inputs = (
            [gradient for gradient in reversed(self.backward[field]) if gradient is not None]
            for field in ("input", "output")
        )
        listener.backward_api(self.call, outputs, inputs)


class Flow(Protocol):
    """Reports the backward of calls to a listener."""

    def enter(self, kind: type[ModuleWatch], about: Any, arguments: Arguments) -> tuple[Any, Arguments]:
        """Call before a forward: what `leave` needs, and the arguments to go on with."""

    def leave(self, call: Any, entered: Any, output: Any) -> None:
        """Call after it: its backward will be reported, unless `entered` is ``None``."""

    def in_collected_pass(self) -> bool:
        """Whether the backward that runs now is, among others, that of a call that was collected."""

    def defer(self, report: Callable[[], None]) -> None:
        """Call `report` right before the next module's backward is complete, or at the end of the pass."""

    def finish(self) -> None:
        """Report whatever is still open."""

    def forget(self) -> None:
        """The step is over; no gradient of it will be reported."""


class NodeFlow:
    """Watches the nodes of the gradient graph."""

    def __init__(self, listener: Listener) -> None:
        self._graph = MindSporeGraph(listener)
        self._flow = GradientFlow(listener, self._graph)
        self.in_collected_pass = self._flow.in_collected_pass
        self.defer = self._flow.defer
        self.finish = self._flow.finish
        self.forget = self._flow.forget

    def enter(self, kind: type[ModuleWatch], about: Any, arguments: Arguments) -> tuple[Any, Arguments]:
        find = self._graph.input_places if kind is ModuleWatch else self._graph.direct_places
        return (kind, *self._flow.inputs_as(find, about, *arguments)), arguments

    def leave(self, call: Any, entered: Any, output: Any) -> None:
        if entered is None:
            return
        kind, number, places = entered
        self._flow.watch(kind, call, number, places, output)


def flow_for(listener: Listener) -> Flow:
    """The way that this MindSpore allows."""
    if HAS_NODES:
        return NodeFlow(listener)
    from probe.backends.mindspore.identity_flow import IdentityFlow

    return IdentityFlow(listener)
