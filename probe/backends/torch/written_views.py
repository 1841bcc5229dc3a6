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
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from probe.backends.torch.freed_in_turn import FreedInTurn
from probe.backends.torch.later_gradient import LaterGradient, Line, NotedView, Write
from probe.backends.torch.quiet import compiling, passed_over, safely, skipped, with_autograd_kernels
from probe.backends.torch.views import Extent, WriteCounter, can_be_cut, has_lost_its_node
from probe.backends.torch.writes_in_graph import AGAIN, OWN, RECEIVERS, VIEWS, Stretch, Writes, is_use
from probe.common.contract import Listener
from probe.common.substitution import CodeSwap
from probe.common.view_backward import ViewBackward

_UNKNOWN = 64
"""The most writes to nobody knows where after which a gradient is put together: each is looked for in each view."""

# All ways to start a backward lead there, in releases of torch that have it.
_run: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)


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
        self._lines: Any = WeakTensorKeyDictionary()
        self._receiving: list[list[Callable[..., Any]]] = []
        """Of nodes, whom to tell what arrives there; the nodes may run again when nothing is collected."""
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
        line = self._lines.get(view)
        if line is None:
            line = self._lines[view] = self._line(own, node, made_of)
        own.metadata[OWN] = line
        views = node.metadata.get(VIEWS)
        if views is None:
            views = node.metadata[VIEWS] = []
            self._noted.add(id(node))
            self._counters.append(WriteCounter(whole))
        views.append(NotedView(view, made_of, line, backward))
        if not self._attached:
            self._attached = True
            self._swap.install()

    def _line(self, own: Any, end: Any, made_of: Any) -> Line:
        """Of a view with the node `own` of a tensor with the node `end`."""
        number = next(self._numbers)
        noted = None if made_of is None else self._lines.get(made_of)
        if noted is not None and not has_lost_its_node(made_of) and own.next_functions[0][0] is made_of.grad_fn:
            return Line((*noted.numbers, number), noted.whole)
        above = own
        # A view that was written to has lost what it was made of.
        while above is not None and above is not end and not above.name().startswith(AGAIN):
            noted = above.metadata.get(OWN)
            if noted is not None:
                return Line((*noted.numbers, number), noted.whole)
            above = above.next_functions[0][0]
        return Line((number,), above is end)

    def remove(self) -> None:
        """Out of the way of the user's backward."""
        for receivers in self._receiving:
            receivers.clear()
        self._receiving.clear()
        if self._swap is not None and self._attached:
            self._attached = False
            self._swap.restore()

    def forget(self) -> None:
        """No gradient of the views so far will be reported."""
        self._noted.clear()
        self._counters.clear()
        self._lines.clear()
        self._written = False
        self.remove()

    # --- backward

    @passed_over
    def _run_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._swap is not None
        if not compiling():
            safely(self._listener, "writes to views", self._find_writes, args[0] if args else ())
        return self._swap.body(*args, **kwargs)

    def _any_written(self) -> bool:
        self._written = self._written or any(counter.changed() for counter in self._counters)
        return self._written

    @skipped
    def _find_writes(self, roots: Iterable[Any]) -> None:
        if not self._any_written():
            return
        # The node of a tensor is asked for next anyway, by torch. An edge of the graph has one.
        with with_autograd_kernels():
            ahead: list[Any] = [getattr(root, "node" if isinstance(root, tuple) else "grad_fn") for root in roots]
        writes = Writes()
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
            writes.add(node, following)
            ahead += [edge[0] for edge in following if edge[0] not in seen]
        self._freed_in_turn.all_seen(seen)
        for node in noted:
            for view in node.metadata.get(VIEWS, ()):
                self._follow(view, writes.stretch((node, view.slot), view.whole))

    def _follow(self, view: NotedView, stretch: Stretch | None) -> None:
        """Have everything that arrives for `view` in this pass, but at its own node, put together."""
        can_be_used_again = view.can_be_used_again()
        uses: list[tuple[int, Any, Extent]] = []
        writes: list[Write] = []
        nodes: list[Any] = []
        unknown = 0
        clear = True
        lost = False
        effect = Write.ELSEWHERE
        while effect is not Write.HERE and stretch is not None:
            for node, extent in stretch.again:
                of_it = is_use(view, node, extent, stretch)
                lost = lost or (of_it is None and not writes)
                if of_it or lost:
                    uses.append((len(writes), node, extent))
                clear = clear and of_it is not None
            if writes and not clear and effect is Write.ELSEWHERE:
                effect = writes[-1] = Write.UNKNOWN
            unknown += effect is Write.UNKNOWN
            if stretch.write is None or unknown > _UNKNOWN:
                break
            effect = stretch.effect(view)
            writes.append(effect)
            nodes.append(stretch.write)
            stretch = stretch.following
            clear = can_be_used_again
        later = LaterGradient(view, writes, lost or unknown > _UNKNOWN)
        for number, node, extent in uses:
            receive = functools.partial(later.used, number, extent.layout)
            self._receivers(node, node.register_prehook, _arrived).append(receive)
        for at, write in enumerate(nodes):
            # A write to memory that the view shows twice is the end of it.
            if writes[at] is Write.UNKNOWN or (writes[at] is Write.HERE and not view.layout.overlaps_itself()):
                self._receivers(write, write.register_hook, _departed).append(functools.partial(later.written, at))

    def _receivers(self, node: Any, register: Callable[..., Any], hook: Callable[..., Any]) -> list[Callable[..., Any]]:
        receivers: list[Callable[..., Any]] | None = node.metadata.get(RECEIVERS)
        if receivers is None:
            receivers = node.metadata[RECEIVERS] = []
            register(functools.partial(hook, self._listener, receivers))
        self._receiving.append(receivers)
        return receivers


@skipped
def _arrived(listener: Listener, receivers: Sequence[Callable[..., Any]], gradients: Sequence[Any]) -> None:
    # What a hook returns takes the gradient's place.
    safely(listener, "a use of a view", _hand_out, receivers, gradients[0])


@skipped
def _departed(
    listener: Listener, receivers: Sequence[Callable[..., Any]], flowing: Sequence[Any], arrived: Sequence[Any]
) -> None:
    safely(listener, "a write to a view", _hand_out, receivers, flowing[0], arrived[0])


def _hand_out(receivers: Sequence[Callable[..., Any]], gradient: Any, *more: Any) -> None:
    if gradient is not None:
        for receive in receivers:
            receive(gradient, *more)
