"""The backward of modules and functions, seen without adding a node to the gradient graph.

For frameworks whose gradient graph can be walked and whose nodes take hooks; the backend says how, as a
`GradientGraph`.

The gradient of an output is seen by a pre-hook on the output's gradient node. The gradient of an input *through this
call only* flows along the edges that lead from the nodes of the call to the input's node: after the forward they are
found by walking back from the outputs, and a post-hook on each node that holds such an edge sees what flows there. Full
backward hooks would put identity nodes around the module, which changes the order in which gradients are accumulated,
and with it their last bits.

The engine runs ready nodes by descending sequence number, and a node is made ready by nodes with higher numbers. So
when a node runs whose number is below the one at which a call began, everything of that call which will run in this
pass has run: that is when its backward is complete.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

from typing_extensions import TypeAlias

from probe.backends.shared import gradient_graph
from probe.backends.shared.gradient_graph import (
    LEAF_NUMBER,
    Cut,
    FindEdges,
    GradientEdge,
    GradientGraph,
    ModuleWatch,
    NodeHook,
    PostHook,
    PreHook,
    Writes,
    key_of,
)
from probe.common.interfaces import Listener

_OutputEdges: TypeAlias = tuple[tuple[int, Optional[int], Sequence[int], Optional[Cut]], ...]
"""The outputs at one node: the slot, the index of the output (``None``: not one that the call returned), the inputs
that it is, and its part of the gradient."""


class Pass:
    """A pass of the engine that is under way.

    Passes can run side by side on several threads, and one inside another (reentrant checkpoints).
    """

    __slots__ = ("late", "lowest", "open", "thread")

    def __init__(self, lowest: int) -> None:
        self.thread = threading.get_ident()
        """The thread on which the first backward began."""
        self.lowest = lowest
        """The lowest `entered_at` of the backwards in it."""
        self.open: list[ModuleWatch] = []
        """Backwards that have begun, by ascending `entered_at`."""
        self.late: list[ModuleWatch] = []
        """Backwards that are complete and to which more may be added."""

    def insert(self, watch: ModuleWatch) -> None:
        at = len(self.open)
        while at and self.open[at - 1].entered_at > watch.entered_at:
            at -= 1
        self.open.insert(at, watch)


class BackwardTracker:
    """Reports the backward of calls to a listener."""

    def __init__(self, listener: Listener, graph: GradientGraph) -> None:
        self._listener = listener
        self._graph = graph
        self._passages = gradient_graph.Passages(graph)
        self._current_pass = graph.current_pass
        self.guarded = graph.guarded
        self._keys: dict[type[NodeHook], str] = {kind: key_of(kind, graph) for kind in (PreHook, PostHook)}
        self._passes: dict[int, Pass] = {}
        """By the number that the engine gives them."""
        self._deferred: list[Callable[[], None]] = []

    # --- forward

    def inputs(self, about: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, list[GradientEdge]]:
        """Call before a call's forward: the sequence number it starts at, and the edges of its inputs."""
        return self.inputs_as(self._graph.input_edges, about, args, kwargs)

    def inputs_as(
        self, find: FindEdges, about: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[int, list[GradientEdge]]:
        """`inputs` where something else decides which tensors are listed."""
        graph = self._graph
        try:
            inputs = find(args, kwargs) if graph.recording() else []
            return graph.entry_number(inputs), inputs
        except Exception as error:
            self._listener.failed(about, error)
            return graph.entry_number([]), []

    def watch(
        self, kind: type[ModuleWatch], call: Any, entered_at: int, inputs: list[GradientEdge], output: Any
    ) -> None:
        """Call after its forward: from now on its backward is reported."""
        graph = self._graph
        if not graph.recording():
            return
        try:
            writes = graph.writes(inputs)
            outputs = graph.output_edges(output, inputs)
            if writes is not None or any(outputs):
                views = graph.returned_views(output, inputs)
                self._watch(kind, call, entered_at, inputs, outputs, writes).views = views
        except Exception as error:
            self._listener.failed(call, error)

    def _watch(
        self,
        kind: type[ModuleWatch],
        call: Any,
        entered_at: int,
        inputs: list[GradientEdge],
        outputs: list[GradientEdge],
        writes: Writes | None,
    ) -> ModuleWatch:
        graph = self._graph
        indices_of: dict[Any, list[int]] = {}
        for index, edge in enumerate(inputs):
            if edge is not None:
                indices_of.setdefault(edge, []).append(index)
        ends: list[gradient_graph.End] = [(index, edge) for index, edge in enumerate(outputs) if edge is not None]
        if writes is not None:
            ends += gradient_graph.unreturned(writes, ends)
            for index, edge in writes.before:
                if index not in indices_of.setdefault(edge, []):
                    indices_of[edge].append(index)
        # Edges found by passages are in another order.
        passages = self._passages if writes is None and not kind.each_alone else None
        crossings = gradient_graph.find_crossings(graph, ends, indices_of, entered_at, passages)
        if kind.each_alone:
            crossings = gradient_graph.separate_arguments(crossings)
        watch = kind(call, entered_at, len(outputs), len(ends), len(inputs))
        leading = [indices for _, _, indices, _ in crossings]
        leading += [indices_of[edge] for _, edge in ends if edge in indices_of]
        if len(leading) > 1:
            watch.shared = gradient_graph.in_several(leading)
        for node, ends_here in gradient_graph.ends_by_node(ends).items():
            number = graph.number(node)
            if number >= LEAF_NUMBER:
                graph.hold(node)
            if not entered_at <= number < LEAF_NUMBER:
                watch.late = True
            # Tuples, which the garbage collector lets be once it has seen that there are only numbers in them.
            output_edges: _OutputEdges = tuple(
                (edge[1], index, tuple(indices_of.get(edge, ())), edge[2] if len(edge) == 3 else None)
                for index, edge in ends_here
            )
            self._hook(node, PreHook, (watch, output_edges))
        for node, crossings_here in gradient_graph.crossings_by_node(crossings).items():
            watch.crossings += 1
            self._hook(node, PostHook, (watch, tuple(crossings_here)))
        watch.crossings_left = watch.crossings
        return watch

    def _hook(self, node: Any, kind: type[NodeHook], served: tuple[Any, ...]) -> None:
        metadata = self._graph.metadata(node)
        key = self._keys[kind]
        hook = metadata.get(key)
        if hook is not None:
            hook.append(served)
            return
        hook = self._new_hook(kind, self._graph.number(node))
        hook.append(served)
        register = self._graph.register_prehook if kind is PreHook else self._graph.register_posthook
        register(node, hook)
        metadata[key] = hook

    def _new_hook(self, kind: type[NodeHook], number: int) -> Any:
        return kind(self, number)

    # --- backward

    def advance(self, number: int) -> None:
        """A node with sequence number `number` runs: report the backwards that are complete by now."""
        current = self._passes.get(self._current_pass())
        if current is not None:
            opened = current.open
            while opened and opened[-1].entered_at > number:
                self._complete(opened.pop())

    def _advance_all_but(self, number: int, waiting: Sequence[ModuleWatch]) -> None:
        """`advance`, but leave open what is about to get another gradient from the node that runs."""
        current = self._passes.get(self._current_pass())
        if current is None or not current.open or current.open[-1].entered_at <= number:
            return
        for watch in [watch for watch in reversed(current.open) if watch.entered_at > number]:
            if watch not in waiting:
                current.open.remove(watch)
                self._complete(watch)

    def in_collected_pass(self) -> bool:
        """True if the backward that runs now is, among others, that of a call that was collected."""
        return self._current_pass() in self._passes

    def defer(self, report: Callable[[], None]) -> None:
        """Call `report` right before the next module's backward is complete, or at the end of the pass."""
        if self.in_collected_pass():
            self._deferred.append(report)
        else:
            report()

    def _report_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for report in deferred:
            report()

    def advance_to_current(self) -> None:
        """`advance` to the node that runs now, if one does; called when forward code runs, also during a backward."""
        if not self._passes:
            return
        if self._current_pass() == -1:
            self._end_interrupted_passes()
            return
        number = self._graph.current_number()
        if number is not None:
            self.advance(number)

    def _end_interrupted_passes(self) -> None:
        """No backward is under way on this thread: an exception has ended those that began here."""
        thread = threading.get_ident()
        for number in [number for number, current in self._passes.items() if current.thread == thread]:
            self._end_pass(number)

    def finish(self) -> None:
        """Report whatever is still open; the pass was cut short or its end was not seen."""
        for number in list(self._passes):
            self._end_pass(number)

    def forget(self) -> None:
        """The step is over; no gradient of it will be reported."""
        self._graph.forget()
        self._passages.forget()

    def before_node(self, hook: PreHook, grad_output: Sequence[Any]) -> None:
        number = hook.number
        # Several calls can return the same tensor. The outermost was added last and is entered first; one that
        # began after this node was made returns its input unchanged and ends before the next one begins.
        waiting = [watch for watch, _ in hook]
        while waiting:
            self._advance_all_but(number, waiting)
            watch, output_edges = hook[len(waiting) - 1]
            waiting.pop()
            if watch.backward is None and not self._begin(watch):
                continue
            for slot, index, inputs, cut in output_edges:
                gradient = grad_output[slot] if slot < len(grad_output) else None
                watch.outputs_left -= 1
                if gradient is not None and index is not None:
                    if cut is not None:
                        gradient = cut(gradient)
                    if index not in watch.unknown_outputs:
                        watch.gradient(self._listener, "input", index, gradient)
                    for given in inputs:
                        self._input_gradient(watch, given, gradient)
            self._end_early(watch)
        if number >= LEAF_NUMBER:
            # A leaf is the same node in every pass, and later ones are not of these calls.
            hook.clear()

    def after_node(self, hook: PostHook, grad_input: Sequence[Any]) -> None:
        self.advance(hook.number)
        for watch, crossings in hook:
            if watch.backward is None:
                continue
            for slot, indices, cut in crossings:
                gradient = grad_input[slot] if slot < len(grad_input) else None
                if gradient is not None:
                    if cut is not None:
                        gradient = cut(gradient)
                    for index in indices:
                        self._input_gradient(watch, index, gradient)
            watch.crossings_left -= 1
            self._end_early(watch)

    def _end_early(self, watch: ModuleWatch) -> None:
        if watch.nothing_left():
            watch.current_pass.open.remove(watch)
            self._complete(watch)

    def _input_gradient(self, watch: ModuleWatch, index: int, gradient: Any) -> None:
        watch.received = True
        if index in watch.unknown_inputs:
            return
        if index not in watch.shared:
            watch.gradient(self._listener, "output", index, gradient)
            return
        so_far = watch.sums.get(index)
        watch.sums[index] = gradient if so_far is None else self._graph.add(so_far, gradient)

    def _begin(self, watch: ModuleWatch) -> bool:
        number = self._current_pass()
        current = self._passes.get(number)
        if watch.kept is not None and watch.current_pass is current:
            # It is no longer among the open calls, and so nobody's parent.
            watch.backward = watch.kept
        else:
            if watch.views:
                watch.find_written_views()
            if not watch.begin(self._listener):
                return False
        if current is None:
            current = self._passes[number] = Pass(watch.entered_at)
            end = functools.partial(self.guarded, watch.call, self._end_pass, number)
            self._graph.at_end_of_pass(end)
        elif watch.entered_at < current.lowest:
            current.lowest = watch.entered_at
        watch.current_pass = current
        current.insert(watch)
        return True

    def _end_pass(self, number: int) -> None:
        ended = self._passes.pop(number, None)
        if ended is None:
            self._report_deferred()
            return
        left, ended.open = ended.open, []
        last = [watch for watch in left if not watch.received] if self._graph.without_gradient_last else []
        for watch in [watch for watch in reversed(left) if watch not in last] + last:
            self._complete(watch)
        late, ended.late = ended.late, []
        for watch in late:
            watch.kept = watch.current_pass = None
            watch.sums = {}
        self._report_deferred()
        self._graph.release(ended.lowest)

    def _complete(self, watch: ModuleWatch) -> None:
        if self._deferred and not watch.ends_early:
            self._report_deferred()
        for index, gradient in watch.sums.items():
            watch.gradient(self._listener, "output", index, gradient)
        watch.end(self._listener)
        if watch.late:
            watch.kept = watch.backward
            watch.current_pass.late.append(watch)
        else:
            watch.sums = {}
            # A pass and its backwards would keep each other alive.
            watch.current_pass = None
        watch.reset()
