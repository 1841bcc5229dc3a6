"""The backward of modules and functions, seen without adding a node to the gradient graph.

For frameworks whose gradient graph can be walked and whose nodes take hooks; the backend says how, as a `Graph`.

The gradient of an output is seen by a pre-hook on the output's gradient node. The gradient of an input *through this
call only* flows along the edges that lead from the nodes of the call to the input's node: after the forward they are
found by walking back from the outputs, and a hook on each node that holds such an edge sees what flows there. Full
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

from probe.backends.shared.autograd.edges import (
    _by_node,
    _crossings,
    _crossings_by_node,
    _End,
    _in_several,
    _told_apart,
    _unreturned,
)
from probe.backends.shared.autograd.graph import LEAF_NUMBER, Cut, FindPlaces, Graph, Origin, Place, Writes
from probe.backends.shared.autograd.node_hooks import ArrivalHook, DepartureHook, NodeHook
from probe.backends.shared.autograd.watches import Watch
from probe.common.interfaces import Listener
from probe.common.view_backward import Later, WrittenLater

_Arrivals = tuple[tuple[int, Optional[int], Sequence[int], Optional[Cut]], ...]
"""Slots, the places of the output (``None``: nothing the call returned), those of the input, and the part they have."""


class GradientFlow:
    """Tells a listener of the backward of calls."""

    def __init__(self, listener: Listener, graph: Graph) -> None:
        self._listener = listener
        self._graph = graph
        self._current_pass = graph.current_pass
        self.safely = graph.safely
        self._open: dict[int, list[Watch]] = {}
        """Backwards that have begun, by ascending `entered_at`, for each pass of the engine that is under way.

        Passes can run side by side on several threads, and one inside another (reentrant checkpoints).
        """
        self._thread_of: dict[int, int] = {}
        """The thread on which the first of them began."""
        self._lowest: dict[int, int] = {}
        """The lowest `entered_at` that was seen in each of these passes."""
        self._late: dict[int, list[Watch]] = {}
        """Backwards of these passes that are complete and to which more may be added."""
        self._deferred: list[Callable[[], None]] = []
        self._due: dict[int, list[tuple[int, Later]]] = {}
        """What is to be reported in these passes when the engine has come to a sequence number, by ascending number."""

    # --- forward

    def inputs(self, about: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, list[Place]]:
        """Call before a call's forward: the sequence number it starts at, and the places of its inputs."""
        return self.inputs_as(self._graph.input_places, about, args, kwargs)

    def inputs_as(
        self, find: FindPlaces, about: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[int, list[Place]]:
        """`inputs` where something else decides which tensors have a place."""
        graph = self._graph
        try:
            places = find(args, kwargs) if graph.recording() else []
            return graph.entry_number(places), places
        except Exception as error:
            self._listener.failed(about, error)
            return graph.entry_number([]), []

    def watch(self, kind: type[Watch], call: Any, entered_at: int, inputs: list[Place], output: Any) -> None:
        """Call after its forward: from now on its backward is reported."""
        graph = self._graph
        if not graph.recording():
            return
        try:
            writes = graph.writes(inputs)
            outputs = graph.output_places(output, inputs)
            if writes is not None or any(outputs):
                origin = graph.origin(output, entered_at)
                watch = self._watch(kind, call, entered_at, inputs, outputs, writes, origin)
                if origin is None:
                    graph.watch_views(output, inputs, functools.partial(WrittenLater, self, watch))
        except Exception as error:
            self._listener.failed(call, error)

    def _watch(
        self,
        kind: type[Watch],
        call: Any,
        entered_at: int,
        inputs: list[Place],
        outputs: list[Place],
        writes: Writes | None,
        origin: Origin | None,
    ) -> Watch:
        graph = self._graph
        places: dict[Any, list[int]] = {}
        for index, place in enumerate(inputs):
            if place is not None:
                places.setdefault(place, []).append(index)
        ends: list[_End] = [(index, place) for index, place in enumerate(outputs) if place is not None]
        if writes is not None:
            ends += _unreturned(writes, ends)
            for index, place in writes.before:
                if index not in places.setdefault(place, []):
                    places[place].append(index)
        crossings = _crossings(graph, ends, places, entered_at)
        if kind.each_alone:
            crossings = _told_apart(crossings)
        watch = kind(call, entered_at, len(outputs), len(ends), len(inputs))
        leading = [indices for _, _, indices, _ in crossings]
        leading += [places[place] for _, place in ends if place in places]
        if len(leading) > 1:
            watch.shared = _in_several(leading)
        for node, slots in _by_node(ends).items():
            number = graph.number(node)
            if number >= LEAF_NUMBER:
                graph.hold(node)
            if not entered_at <= number < LEAF_NUMBER:
                watch.late = True
            # Tuples, which the garbage collector lets be once it has seen that there are only numbers in them.
            arrivals: _Arrivals = tuple(
                (place[1], index, tuple(places.get(place, ())), place[2] if len(place) == 3 else None)
                for index, place in slots
            )
            here = origin.untouched if origin is not None and slots[0][0] == 0 else None
            self._note(node, ArrivalHook, (watch, arrivals, here))
        if origin is not None:
            node, slot, cut = origin.place
            self._note(node, ArrivalHook, (watch, ((slot, 0, (), cut),), origin.written))
        for node, crossed in _crossings_by_node(crossings).items():
            watch.crossings += 1
            self._note(node, DepartureHook, (watch, tuple(crossed)))
        watch.crossings_left = watch.crossings
        return watch

    def _note(self, node: Any, kind: type[NodeHook], what: tuple[Any, ...]) -> None:
        notes = self._graph.notes(node)
        noted = notes.get(kind.key)
        if noted is not None:
            noted.append(what)
            return
        hook = kind(self, self._graph.number(node))
        hook.append(what)
        hook.register(self._graph, node)
        notes[kind.key] = hook

    # --- backward

    def advance(self, number: int) -> None:
        """A node with sequence number `number` runs: report the backwards that are complete by now."""
        task = self._current_pass()
        if self._due:
            self._report_due(task, number, ())
        opened = self._open.get(task)
        while opened and opened[-1].entered_at > number:
            self._complete(opened.pop())

    def _advance_all_but(self, number: int, waiting: Sequence[Watch]) -> None:
        """`advance`, but leave open what is about to get another gradient from the node that runs."""
        task = self._current_pass()
        if self._due:
            self._report_due(task, number, waiting)
        self._complete_all_but(self._open.get(task), number, waiting)

    def _complete_all_but(self, opened: list[Watch] | None, number: int, waiting: Sequence[Watch]) -> None:
        if not opened or opened[-1].entered_at <= number:
            return
        for watch in [watch for watch in reversed(opened) if watch.entered_at > number]:
            if watch not in waiting:
                opened.remove(watch)
                self._complete(watch)

    def when_reached(self, about: Any, number: int, later: Later) -> int:
        """Have `later` reported when all nodes above the sequence number `number` that this pass runs have run.

        Returns:
            The number of the pass. What one that was cut short left is nothing to another one.
        """
        self._opened(about, number)
        task = self._current_pass()
        due = self._due.setdefault(task, [])
        at = len(due)
        while at and due[at - 1][0] > number:
            at -= 1
        due.insert(at, (number, later))
        return task

    def runs_now(self, task: int) -> bool:
        """Whether the pass of this number is the one under way."""
        return task == self._current_pass()

    def _report_due(self, task: int, number: int, waiting: Sequence[Watch]) -> None:
        due = self._due.get(task)
        while due and due[-1][0] > number:
            reached, later = due.pop()
            self._complete_all_but(self._open.get(task), reached, waiting)
            later.report()
        if due is not None and not due:
            self._due.pop(task, None)

    def in_collected_pass(self) -> bool:
        """Whether the backward that runs now is, among others, that of a call that was collected."""
        return self._current_pass() in self._open

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
        """The same for the node that runs now, if one does; called when forward code runs, also during a backward."""
        if not self._open:
            return
        if self._current_pass() == -1:
            self._end_what_was_cut_short()
            return
        number = self._graph.current_number()
        if number is not None:
            self.advance(number)

    def _end_what_was_cut_short(self) -> None:
        """No backward is under way on this thread: an exception has ended those that began here."""
        here = threading.get_ident()
        for task in [task for task, thread in self._thread_of.items() if thread == here]:
            self._pass_ended(task)

    def finish(self) -> None:
        """Report whatever is still open; the pass was cut short or its end was not seen."""
        for task in list(self._open):
            self._pass_ended(task)

    def forget(self) -> None:
        """The step is over; no gradient of it will be reported."""
        self._graph.forget()

    def arrived(self, noted: ArrivalHook, gradients: Sequence[Any]) -> None:
        number = noted.number
        # Several calls can return the same tensor. The outermost was noted last and is entered first; one that
        # began after this node was made returns its input unchanged and ends before the next one begins.
        waiting = [watch for watch, _, _ in noted]
        while waiting:
            self._advance_all_but(number, waiting)
            watch, arrivals, here = noted[len(waiting) - 1]
            waiting.pop()
            if here is not None and not here():
                continue  # but at another place
            if watch.backward is None and not self._begin(watch):
                continue
            for slot, index, inputs, cut in arrivals:
                gradient = gradients[slot] if slot < len(gradients) else None
                watch.outputs_left -= 1
                if gradient is not None and index is not None:
                    if cut is not None:
                        gradient = cut(gradient)
                    if index in watch.written_later:
                        self._written_later(watch, index, gradient)
                    else:
                        watch.gradient(self._listener, "input", index, gradient)
                    for place in inputs:
                        self._input_gradient(watch, place, gradient)
            self._end_early(watch)
        if number >= LEAF_NUMBER:
            # A leaf is the same node in every pass, and later ones are not of these calls.
            noted.clear()

    def not_arrived(self, watch: Watch, index: int) -> None:
        """Report of an output, a view, what did not arrive at its node; nothing will any more."""
        if index in watch.written_later:
            self._written_later(watch, index, None)
            watch.outputs_left -= 1
            if watch.backward is not None:
                self._end_early(watch)

    def _written_later(self, watch: Watch, index: int, arrived: Any) -> None:
        """Report what did not arrive at the node of an output, a view, together with what did."""
        later = watch.written_later[index]
        parts, later.parts = later.parts, None
        if later.known:
            del watch.written_later[index]
            if not self.runs_now(later.task):
                if arrived is not None:
                    watch.gradient(self._listener, "input", index, arrived)
                return
        found = None if parts is None or not later.known else parts()
        if watch.backward is None and (found is None or not self._begin(watch)):
            return
        if found is None:
            if later.place is not None:
                watch.unknown = {*watch.unknown, later.place}
                watch.sums.pop(later.place, None)
                watch.gradient(self._listener, "output", later.place, None)
            return
        gradient, given = found
        watch.gradient(self._listener, "input", index, self._sum(arrived, gradient))
        if later.place is not None and given is not None:
            # More of it may come along the edges of the graph.
            watch.shared = {*watch.shared, later.place}
            self._input_gradient(watch, later.place, given)

    def _sum(self, one: Any, other: Any) -> Any:
        return other if one is None else self._graph.add(one, other)

    def crossed(self, noted: DepartureHook, flowing: Sequence[Any]) -> None:
        self.advance(noted.number)
        for watch, crossings in noted:
            if watch.backward is None:
                continue
            for slot, indices, cut in crossings:
                gradient = flowing[slot] if slot < len(flowing) else None
                if gradient is not None:
                    if cut is not None:
                        gradient = cut(gradient)
                    for index in indices:
                        self._input_gradient(watch, index, gradient)
            watch.crossings_left -= 1
            self._end_early(watch)

    def _end_early(self, watch: Watch) -> None:
        if watch.nothing_left():
            self._open[watch.task].remove(watch)
            self._complete(watch)

    def _input_gradient(self, watch: Watch, index: int, gradient: Any) -> None:
        watch.received = True
        if index in watch.unknown:
            return
        if index not in watch.shared:
            watch.gradient(self._listener, "output", index, gradient)
            return
        watch.sums[index] = self._sum(watch.sums.get(index), gradient)

    def _begin(self, watch: Watch) -> bool:
        task = self._current_pass()
        if watch.kept is not None and watch.task == task:
            # Among the open calls it is no more, and so nobody's parent.
            watch.backward = watch.kept
        elif not watch.begin(self._listener):
            return False
        watch.task = task
        opened = self._opened(watch.call, watch.entered_at)
        at = len(opened)
        while at and opened[at - 1].entered_at > watch.entered_at:
            at -= 1
        opened.insert(at, watch)
        return True

    def _opened(self, about: Any, number: int) -> list[Watch]:
        """The open backwards of the pass under way, in which a call gets a gradient that began at `number`."""
        task = self._current_pass()
        opened = self._open.get(task)
        if opened is None:
            opened = self._open[task] = []
            self._thread_of[task] = threading.get_ident()
            self._lowest[task] = number
            self._late[task] = []
            self._graph.at_end_of_pass(functools.partial(self.safely, about, self._pass_ended, task))
        elif number < self._lowest[task]:
            self._lowest[task] = number
        return opened

    def _pass_ended(self, task: int) -> None:
        if task == self._current_pass():
            self._report_due(task, -1, ())
        for _, later in self._due.pop(task, ()):
            later.drop()
        left = self._open.pop(task, [])
        self._thread_of.pop(task, None)
        last = [watch for watch in left if not watch.received] if self._graph.without_gradient_last else []
        for watch in [watch for watch in reversed(left) if watch not in last] + last:
            self._complete(watch)
        for watch in self._late.pop(task, ()):
            watch.kept = None
            watch.sums = {}
            watch.unknown = ()
        self._report_deferred()
        lowest = self._lowest.pop(task, None)
        if lowest is not None:
            self._graph.release(lowest)

    def _complete(self, watch: Watch) -> None:
        if self._deferred and not watch.ends_early:
            self._report_deferred()
        for index, gradient in watch.sums.items():
            watch.gradient(self._listener, "output", index, gradient)
        watch.end(self._listener)
        if watch.late:
            watch.kept = watch.backward
            self._late[watch.task].append(watch)
        else:
            watch.sums = {}
            watch.unknown = ()
        watch.backward = None
        watch.received = False
        watch.outputs_left = watch.outputs_seen
        watch.crossings_left = watch.crossings


