"""The backward of a call that returned a view, where the view's memory is written to afterwards.

torch takes the gradient node of such a view out of the graph: what is computed from the view later goes through a new
node of it, or through one of the write. In the graph a write is a node of the tensor that the view is of, between what
the tensor was before and what it is now.

No write tells us. So a view is noted at the node that its tensor had, and the graph is walked through for the writes
and for the new nodes of views when a backward begins, if the memory of any view was written to.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch
from torch.utils.weak import WeakTensorKeyDictionary
from typing_extensions import TypeAlias

from probe.backends.shared.patching import CodeSwap
from probe.backends.torch.autograd.graph_release import FreedInTurn
from probe.backends.torch.autograd.views import WriteCounter, can_be_cut, has_lost_its_node
from probe.backends.torch.guards import compiling, passed_over, safely, skipped, with_autograd_kernels
from probe.backends.torch.later_gradient import LaterGradient, Write
from probe.backends.torch.noted_views import Ancestry, NotedView
from probe.backends.torch.writes_in_graph import AGAIN, OWN, RECEIVERS, VIEWS, Trace, WriteHistory
from probe.common.interfaces import Listener
from probe.common.view_backward import ViewBackward

# All ways to start a backward lead there, in releases of torch that have it.
_run: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
_current_pass: Callable[[], int] = torch._C._current_graph_task_id


class WrittenViews:
    """The views of a step that may be written to."""

    def __init__(self, listener: Listener, freed_in_turn: FreedInTurn) -> None:
        self._listener = listener
        self._freed_in_turn = freed_in_turn
        self._counters: list[WriteCounter] = []
        """Of the tensors that views were made of."""
        self._written = False
        self._noted: set[int] = set()
        """The identities of the nodes where views are noted. One may be gone, and another node have its identity."""
        self._numbers = itertools.count()
        self._ancestries: Any = WeakTensorKeyDictionary()
        self._views: list[weakref.ref[NotedView]] = []
        self._passes: list[_Pass] = []
        """Under way; of those begun in one thread the last one is innermost."""
        self._swap = None if _run is None else CodeSwap(_run, self._run_backward)
        self._attached = False

    def watch(self, view: torch.Tensor, made_of: Any, backward: ViewBackward) -> None:
        """Tell `backward` of what does not arrive at the node of `view`.

        Args:
            view: It has the node that it was made with.
            made_of: What the call was given and made a view of, if it was; `view` itself where it returned that.
        """
        whole: Any = view._base
        node = whole.grad_fn
        if self._swap is None or node is None or not can_be_cut(whole):
            return
        own: Any = view.grad_fn
        ancestry = self._ancestries.get(view)
        if ancestry is None:
            ancestry = self._ancestries[view] = self._ancestry(own, node, made_of)
        own.metadata[OWN] = ancestry
        views = node.metadata.get(VIEWS)
        if views is None:
            views = node.metadata[VIEWS] = []
            self._noted.add(id(node))
        if views and views[-1].slot == whole.output_nr:
            counter = views[-1].counter
        else:
            counter = WriteCounter(whole)
            self._counters.append(counter)
        noted = NotedView(view, made_of, ancestry, counter, backward)
        views.append(noted)
        self._views.append(weakref.ref(noted))
        self.resume()

    def resume(self) -> None:
        """Follow the views that were noted before `remove`, if there are any."""
        if self._noted and not self._attached and self._swap is not None:
            self._attached = True
            self._swap.install()

    def _ancestry(self, own: Any, end: Any, made_of: Any) -> Ancestry:
        """Of a view with the node `own` of a tensor with the node `end`."""
        number = next(self._numbers)
        noted = None if made_of is None else self._ancestries.get(made_of)
        if noted is not None and not has_lost_its_node(made_of) and own.next_functions[0][0] is made_of.grad_fn:
            return Ancestry(number, noted, noted.complete)
        above = own
        # A view that was written to has lost what it was made of.
        while above is not None and above is not end and not above.name().startswith(AGAIN):
            noted = above.metadata.get(OWN)
            if noted is not None:
                return Ancestry(number, noted, noted.complete)
            above = above.next_functions[0][0]
        return Ancestry(number, None, above is end)

    def remove(self) -> None:
        """Out of the way of the user's backward."""
        if self._swap is not None and self._attached:
            self._attached = False
            self._swap.restore()

    def forget(self) -> None:
        """No gradient of the views so far will be reported."""
        self._noted.clear()
        self._counters.clear()
        self._ancestries.clear()
        self._views.clear()
        self._written = False
        self.remove()

    # --- backward

    @passed_over
    def _run_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._swap is not None
        if compiling():
            return self._swap.body(*args, **kwargs)
        begun = safely(self._listener, "writes to views", self._begin, args[0] if args else ())
        try:
            return self._swap.body(*args, **kwargs)
        finally:
            if begun is not None:
                safely(self._listener, "writes to views", self._end, begun)

    def _begin(self, roots: Iterable[Any]) -> _Pass:
        thread = threading.get_ident()
        self._number_around(thread)
        begun = _Pass(self._listener, thread)
        if self._any_written():
            try:
                self._find_writes(roots, begun)
            except BaseException:
                # What arrives at the views' own nodes would be taken for all.
                for noted in self._views:
                    view = noted()
                    if view is not None:
                        view.backward.unknown()
                begun.forget()
                raise
        self._passes.append(begun)
        return begun

    def _number_around(self, thread: int) -> None:
        """A hook of the user begins a pass on this thread, and the one around may not have come to any node of ours."""
        around = _current_pass()
        if around == -1 or any(one.number == around for one in self._passes):
            return
        unnumbered = [one for one in self._passes if one.number == -1]
        own = [one for one in unnumbered if one.thread == thread]
        if own:
            own[-1].number = around
        elif all(one.ident != thread for one in threading.enumerate()):
            # One of the engine, in which it runs the nodes of a device, or passes deep inside of each other.
            if len(unnumbered) == 1:
                unnumbered[0].number = around
            else:
                for one in unnumbered:
                    one.lose()

    def _end(self, ended: _Pass) -> None:
        self._passes.remove(ended)
        ended.forget()

    def _any_written(self) -> bool:
        self._written = self._written or any(counter.changed() for counter in self._counters)
        return self._written

    @skipped
    def _find_writes(self, roots: Iterable[Any], begun: _Pass) -> None:
        # The node of a tensor is asked for next anyway, by torch. An edge of the graph has one.
        with with_autograd_kernels():
            ahead: list[Any] = [getattr(root, "node" if isinstance(root, tuple) else "grad_fn") for root in roots]
        history = WriteHistory()
        noted: list[Any] = []
        seen: set[Any] = {None}
        while ahead:
            node = ahead.pop()
            if node in seen:
                continue
            seen.add(node)
            if id(node) in self._noted:
                noted.append(node)
            following = node.next_functions
            history.add(node, following)
            ahead += [edge[0] for edge in following if edge[0] not in seen]
        self._freed_in_turn.all_seen(seen)
        for node in noted:
            for view in node.metadata.get(VIEWS, ()):
                begun.follow(view, history.trace(view, node))


class _Pass:
    """One of the engine through a graph, in which there may be writes to views."""

    def __init__(self, listener: Listener, thread: int) -> None:
        self._listener = listener
        self.thread = thread
        """In which it was begun."""
        self.number = -1
        """That the engine has given it, once it has come to a node of ours."""
        self._receivers: dict[int, _Receivers] = {}
        self._views: list[NotedView] = []

    def follow(self, view: NotedView, trace: Trace) -> None:
        """Have everything that arrives for `view`, but at its own node, put together."""
        self._views.append(view)
        later = LaterGradient(view, [effect for _, effect in trace.writes], trace.lost)
        for number, node, layout in trace.uses:
            receive = functools.partial(later.used, number, layout)
            self._at(node, node.register_prehook, _arrived).append((self, receive))
        for at, (write, effect) in enumerate(trace.writes):
            # A write to memory that the view shows twice is the end of it.
            ends = effect is Write.HERE and not view.overlaps_itself
            if ends or effect is Write.UNKNOWN or trace.lost:
                receive = functools.partial(later.written, at)
                self._at(write, write.register_hook, _departed).append((self, receive))

    def lose(self) -> None:
        """Nobody knows which nodes run in it."""
        for view in self._views:
            view.backward.unknown()

    def _at(self, node: Any, register: Callable[..., Any], hook: Callable[..., Any]) -> _Receivers:
        receivers: _Receivers | None = node.metadata.get(RECEIVERS)
        if receivers is None:
            receivers = node.metadata[RECEIVERS] = []
            register(functools.partial(hook, self._listener, receivers))
        self._receivers[id(receivers)] = receivers
        return receivers

    def forget(self) -> None:
        """Its nodes may run again."""
        for receivers in self._receivers.values():
            receivers[:] = [receiver for receiver in receivers if receiver[0] is not self]


_Receivers: TypeAlias = list[tuple[_Pass, Callable[..., Any]]]
"""Whom a node tells in a pass what arrives there."""


@skipped
def _arrived(listener: Listener, receivers: _Receivers, gradients: Sequence[Any]) -> None:
    # What a hook returns takes the gradient's place.
    _hand_out(listener, receivers, gradients[0])


@skipped
def _departed(listener: Listener, receivers: _Receivers, flowing: Sequence[Any], arrived: Sequence[Any]) -> None:
    _hand_out(listener, receivers, flowing[0], arrived[0])


def _hand_out(listener: Listener, receivers: _Receivers, gradient: Any, *more: Any) -> None:
    if gradient is None:
        return
    number = _current_pass()
    for run, receive in receivers:
        if run.number == -1:
            run.number = number
        if run.number == number:
            safely(listener, "a write to a view", receive, gradient, *more)
