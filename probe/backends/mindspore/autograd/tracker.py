"""The backward of cells and functions.

Two ways, behind one interface. From MindSpore 2.7.2 on the nodes of the gradient graph can be had, and the tracker that
is shared with other frameworks changes nothing in it. Before that there are only identity operations to put around a
call's inputs, which can change the order in which gradients are accumulated: see `identity_tracker`.
"""

from __future__ import annotations

from typing import Any

from probe.backends.mindspore.autograd.graph import MindSporeGraph
from probe.backends.mindspore.autograd.interface import Arguments, Tracker
from probe.backends.mindspore.internals import HAS_NODES
from probe.backends.shared.autograd.backward_tracker import BackwardTracker
from probe.backends.shared.autograd.watches import ModuleWatch
from probe.common.interfaces import Listener


class NodeTracker:
    """Implements `probe.backends.mindspore.autograd.interface.Tracker` with hooks on nodes of the gradient graph."""

    def __init__(self, listener: Listener) -> None:
        self._graph = MindSporeGraph(listener)
        self._tracker = BackwardTracker(listener, self._graph)
        self.in_collected_pass = self._tracker.in_collected_pass
        self.defer = self._tracker.defer
        self.finish = self._tracker.finish
        self.forget = self._tracker.forget

    def enter(self, kind: type[ModuleWatch], about: Any, arguments: Arguments) -> tuple[Any, Arguments]:
        find = self._graph.input_edges if kind is ModuleWatch else self._graph.direct_edges
        return (kind, *self._tracker.inputs_as(find, about, *arguments)), arguments

    def leave(self, call: Any, entered: Any, output: Any) -> None:
        if entered is None:
            return
        kind, number, inputs = entered
        self._tracker.watch(kind, call, number, inputs, output)


def tracker_for(listener: Listener) -> Tracker:
    """The way that this MindSpore allows."""
    if HAS_NODES:
        return NodeTracker(listener)
    from probe.backends.mindspore.autograd.identity_tracker import IdentityTracker

    return IdentityTracker(listener)
