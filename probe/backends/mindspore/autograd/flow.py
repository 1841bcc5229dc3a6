"""The backward of cells and functions.

Two ways, behind one interface. From MindSpore 2.7.2 on the nodes of the gradient graph can be had, and the walk that
is shared with other frameworks changes nothing in it. Before that there are only identity operations to put around a
call's inputs, which can change the order in which gradients are accumulated: see `identity_flow`.
"""

from __future__ import annotations

from typing import Any

from probe.backends.mindspore.autograd.graph import HAS_NODES, MindSporeGraph
from probe.backends.mindspore.autograd.interface import Arguments, Flow
from probe.backends.shared.autograd.backward_tracker import GradientFlow
from probe.backends.shared.autograd.watches import ModuleWatch
from probe.common.interfaces import Listener


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
    from probe.backends.mindspore.autograd.identity_flow import IdentityFlow

    return IdentityFlow(listener)
