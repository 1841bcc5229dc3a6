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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import torch
from torch.utils.weak import WeakTensorKeyDictionary
from typing_extensions import TypeAlias

from probe.backends.torch.freed_in_turn import FreedInTurn
from probe.backends.torch.later_gradient import LaterGradient, NotedView, Write
from probe.backends.torch.quiet import compiling, passed_over, safely, skipped, with_autograd_kernels
from probe.backends.torch.views import WRITTEN, Layout, WriteCounter, can_be_cut
from probe.common.contract import Listener
from probe.common.substitution import CodeSwap
from probe.common.view_backward import ViewBackward

_VIEWS = "msprobe views"
"""Under which a node of a tensor keeps the views that were made of it then,"""
_REGION = "msprobe written region"
"""and a node of a write where it has written, and whether it has to all of that,"""
_RECEIVERS = "msprobe receivers"
"""and a node of a write or of a view whom to tell what arrives there."""
_OWN = "msprobe own node"
"""Noted at the node that a view had when a call returned it: the numbers of those that it is a view of, and its own."""
_AGAIN = "AsStridedBackward"
"""How the name begins of the node that torch gives a view when its memory was written to."""

_UNKNOWN = 64
"""The most writes to nobody knows where after which a gradient is put together: each is looked for in each view."""

# All ways to start a backward lead there, in releases of torch that have it.
_run: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
_Edge: TypeAlias = tuple[Any, int]
"""A node of the graph, and the number of its output that a tensor is."""


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
        self._lies_in: Any = WeakTensorKeyDictionary()
        """Of each view, the numbers of those that it is a view of; the last is its own."""
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
        lies_in = self._lies_in.get(view)
        if lies_in is None:
            around = () if made_of is None else self._lies_in.get(made_of, ())
            lies_in = self._lies_in[view] = (*around, next(self._numbers))
        own: Any = view.grad_fn
        own.metadata[_OWN] = lies_in
        views = node.metadata.get(_VIEWS)
        if views is None:
            views = node.metadata[_VIEWS] = []
            self._noted.add(id(node))
            self._counters.append(WriteCounter(whole))
        views.append(NotedView(view, made_of, lies_in, backward))
        if not self._attached:
            self._attached = True
            self._swap.install()

    def wrote(self, target: torch.Tensor, region: Layout | None = None, all_of_it: bool = True) -> None:
        """A call has written to `target`, or to a region of it; and to all of that, or perhaps to a part."""
        if not self._noted:
            return
        whole: Any = target._base if target._is_view() else target
        write = whole.grad_fn
        if write is not None and write.name().endswith(WRITTEN):
            write.metadata.setdefault(_REGION, (region or Layout.of(target), all_of_it))

    def wrote_item(self, target: torch.Tensor, index: Any) -> None:
        """The same of ``target[index] = ...``."""
        if not self._noted:
            return
        item = target[index]
        # What tensors and lists of numbers choose is a copy.
        is_view = item.untyped_storage()._cdata == target.untyped_storage()._cdata
        self.wrote(target, Layout.of(item if is_view else target), all_of_it=is_view)

    def remove(self) -> None:
        """Out of the way of the user's backward."""
        if self._swap is not None and self._attached:
            self._attached = False
            self._swap.restore()

    def forget(self) -> None:
        """No gradient of the views so far will be reported."""
        self._noted.clear()
        self._counters.clear()
        self._lies_in.clear()
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
        found = _Found()
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
            found.add(node, following)
            ahead += [edge[0] for edge in following if edge[0] not in seen]
        self._freed_in_turn.all_seen(seen)
        for node in noted:
            for view in node.metadata.get(_VIEWS, ()):
                self._follow(view, found.stretch((node, view.slot), view.whole))

    def _follow(self, view: NotedView, stretch: _Stretch | None) -> None:
        """Have everything that arrives for `view` in this pass, but at its own node, put together."""
        can_be_used_again = view.can_be_used_again()
        uses: list[tuple[int, Any, Layout]] = []
        writes: list[Write] = []
        nodes: list[Any] = []
        unknown = 0
        clear = True
        effect = Write.ELSEWHERE
        while effect is not Write.HERE and stretch is not None:
            for node, layout in stretch.again:
                of_it = _is_use(view, node, layout, stretch)
                if of_it:
                    uses.append((len(writes), node, layout))
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
        later = LaterGradient(view, writes, lost=unknown > _UNKNOWN)
        for number, node, layout in uses:
            self._receivers(node, node.register_prehook, _arrived).append(functools.partial(later.used, number, layout))
        for at, write in enumerate(nodes):
            if writes[at] is not Write.ELSEWHERE:
                self._receivers(write, write.register_hook, _departed).append(functools.partial(later.written, at))

    def _receivers(self, node: Any, register: Callable[..., Any], hook: Callable[..., Any]) -> list[Callable[..., Any]]:
        receivers: list[Callable[..., Any]] | None = node.metadata.get(_RECEIVERS)
        if receivers is None:
            receivers = node.metadata[_RECEIVERS] = []
            register(functools.partial(hook, self._listener, receivers))
        return receivers


class _Stretch:
    """The time between two writes to a tensor through views of it."""

    __slots__ = ("again", "before", "ends", "following", "region", "views", "write")

    def __init__(self, before: _Stretch | None, edge: _Edge) -> None:
        self.before = before
        node, slot = edge
        self.views: list[NotedView] = [view for view in node.metadata.get(_VIEWS, ()) if view.slot == slot]
        """That were made in it."""
        self.again: list[tuple[Any, Layout]] = []
        """The nodes that views from before the last write had in it, and their layouts."""
        self.write: Any = None
        """That ends it, and where it went:"""
        self.region: tuple[Layout, bool] | None = None
        """to all of it or perhaps to a part, where that is known;"""
        self.ends = 0, 0
        """the first item there, and the one behind the last."""
        self.following: _Stretch | None = None

    def alike(self, layout: Layout) -> Iterator[NotedView]:
        """The views that lie so, of those that were made until its end."""
        stretch: _Stretch | None = self
        while stretch is not None:
            for view in stretch.views:
                if view.layout == layout:
                    yield view
            stretch = stretch.before

    def effect(self, view: NotedView) -> Write:
        """Of the write that ends it."""
        if self.region is None:
            return Write.UNKNOWN
        layout, all_of_it = self.region
        # This tells nearly all apart, and there can be many of both.
        if view.layout.dtype is layout.dtype and (self.ends[1] <= view.ends[0] or view.ends[1] <= self.ends[0]):
            return Write.ELSEWHERE
        overlaps = view.layout.overlaps(layout)
        if overlaps is False:
            return Write.ELSEWHERE
        return Write.HERE if overlaps and all_of_it else Write.UNKNOWN


class _Found:
    """The writes to tensors through views in a graph, and the nodes that views had after them."""

    def __init__(self) -> None:
        self._writes: dict[_Edge, Any] = {}
        """By where the tensor was in the graph before."""
        self._again: dict[_Edge, list[Any]] = {}
        """By where the tensor was then."""
        self._stretches: dict[_Edge, _Stretch] = {}

    def add(self, node: Any, following: Sequence[_Edge]) -> None:
        name: str = node.name()
        if not following or not (name.endswith(WRITTEN) or name.startswith(_AGAIN)):
            return
        notes = node.metadata
        if _RECEIVERS in notes:
            # Of another pass.
            notes[_RECEIVERS].clear()
        if name.endswith(WRITTEN):
            self._writes[following[0]] = node
        else:
            self._again.setdefault(following[0], []).append(node)

    def stretch(self, edge: _Edge, whole: Layout) -> _Stretch | None:
        """That began when a tensor, which lies as `whole`, had this place in the graph."""
        if edge not in self._stretches:
            first = edge
            while first[0].name().endswith(WRITTEN):
                first = first[0].next_functions[0]
            self._make_stretches(first, whole)
        return self._stretches.get(edge)

    def _make_stretches(self, edge: _Edge, whole: Layout) -> None:
        before: _Stretch | None = None
        while True:
            stretch = self._stretches[edge] = _Stretch(before, edge)
            stretch.again = [(node, _layout(node, whole)) for node in self._again.get(edge, ())]
            if before is not None:
                before.following = stretch
                before.region = _region(before.write, stretch)
                before.ends = (0, 0) if before.region is None else before.region[0].ends()
            stretch.write = self._writes.get(edge)
            if stretch.write is None:
                return
            before, edge = stretch, (stretch.write, 0)


def _layout(node: Any, whole: Layout) -> Layout:
    """Of a view of a tensor that lies as `whole`, by the node that it had again."""
    offset = node._saved_storage_offset
    return whole._replace(
        size=node._saved_size, stride=node._saved_stride, offset=whole.offset if offset is None else offset
    )


def _region(write: Any, after: _Stretch) -> tuple[Layout, bool] | None:
    # torch gives the view that is written through its new node right after that of the write.
    number = write._sequence_nr() + 1
    for node, layout in after.again:
        if node._sequence_nr() == number:
            return layout, True
    region: tuple[Layout, bool] | None = write.metadata.get(_REGION)
    return region


def _is_use(view: NotedView, node: Any, layout: Layout, stretch: _Stretch) -> bool | None:
    """Whether `node` is of `view` or a view of it, which lies as `layout`: a noted one, or one that no recorded call
    has made."""
    if node._sequence_nr() == view.node_number:
        return False
    own = node.metadata.get(_OWN)
    if own is not None:
        return view.number in own
    alike = {view.number in other.lies_in for other in stretch.alike(layout)}
    if alike == {False} or (not alike and view.layout.overlaps(layout) is False):
        return False
    return True if alike == {True} and not layout.overlaps_itself() else None


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
