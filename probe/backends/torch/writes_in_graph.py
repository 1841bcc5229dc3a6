"""Where in a gradient graph the tensors that views are of were written to, and where the views were used again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from probe.backends.shared.autograd.graph import Edge
from probe.backends.torch.autograd.strides import Extent, Layout
from probe.backends.torch.autograd.views import WRITTEN, has_lost_its_node
from probe.backends.torch.later_gradient import Write
from probe.backends.torch.noted_views import Ancestry, NotedView
from probe.backends.torch.written_region import written_region

VIEWS = "msprobe views"
"""Under which a node of a tensor keeps the views that were made of it then,"""
OWN = "msprobe own node"
"""the node that a view had when a call returned it the `Ancestry` of the view,"""
RECEIVERS = "msprobe receivers"
"""and a node of a write or of a view whom to tell what arrives there."""
AGAIN = "AsStridedBackward"
"""How the name begins of the node that torch gives a view when its memory was written to."""

_UNKNOWN = 64
"""The most writes to nobody knows where after which a gradient is put together: each is looked for in each view."""
_LOOKED_AT = 1_000_000
"""How many pairs of a view and a write to its tensor are looked at: a second or so. What is left has no gradient."""


class Stretch:
    """The time between two writes to a tensor through views of it."""

    __slots__ = ("again", "all", "before", "following", "number", "region", "views", "write")

    def __init__(self, before: Stretch | None, edge: Edge) -> None:
        self.before = before
        self.all: list[Stretch] = [] if before is None else before.all
        """Of the tensor."""
        self.number = len(self.all)
        self.all.append(self)
        node, slot = edge
        self.views: list[NotedView] = [view for view in node.metadata.get(VIEWS, ()) if view.slot == slot]
        """That were made in it."""
        self.again: list[tuple[Any, Extent]] = []
        """The nodes that views from before the last write had in it, and where these views lie."""
        self.write: Any = None
        """That ends it,"""
        self.region: Extent | None = None
        """and where it went, if that is known."""
        self.following: Stretch | None = None

    def has_unrecorded_writes(self, view: NotedView) -> bool:
        """Whether the tensor was written to without recording since `view` was made of it in this time."""
        return view.writes_since() > len(self.all) - 1 - self.number

    def alike(self, layout: Layout) -> Iterator[NotedView]:
        """The views that lie so, of those that were made until its end."""
        stretch: Stretch | None = self
        while stretch is not None:
            for view in stretch.views:
                if view.layout == layout:
                    yield view
            stretch = stretch.before

    def effect(self, view: NotedView) -> Write:
        """Of the write that ends it."""
        overlaps = None if self.region is None else view.extent.overlaps(self.region)
        if overlaps is None:
            return Write.UNKNOWN
        return Write.HERE if overlaps else Write.ELSEWHERE


@dataclasses.dataclass
class Trace:
    """Where the gradient of a view arrives besides its own node."""

    uses: list[tuple[int, Any, Layout]] = dataclasses.field(default_factory=list)
    """Nodes of it, or of a view of it, the number of writes before, and how what they are of lies."""
    writes: list[tuple[Any, Write]] = dataclasses.field(default_factory=list)
    """The nodes of the writes to its tensor, until one to the view itself, and what they did to the view."""
    lost: bool = False
    """Whether it cannot be known."""

    def ended(self) -> bool:
        return bool(self.writes) and (self.lost or self.writes[-1][1] is Write.HERE)

    def add_uses(self, view: NotedView, stretch: Stretch) -> None:
        """Those between two writes."""
        certain = not self.writes or view.has_recognizable_nodes()
        for node, extent in stretch.again:
            use = _is_use(view, node, extent, stretch)
            certain = certain and use is not None
            if use is None and not self.writes:
                self.lost = True
            if use or self.lost:
                self.uses.append((len(self.writes), node, extent.layout))
        if not certain and self.writes and self.writes[-1][1] is Write.ELSEWHERE:
            self.writes[-1] = self.writes[-1][0], Write.UNKNOWN


class WriteHistory:
    """The writes to tensors in one graph, and the nodes that views had after them."""

    def __init__(self) -> None:
        self._left = _LOOKED_AT
        self._writes: dict[Edge, Any] = {}
        """By where the tensor was in the graph before."""
        self._again: dict[Edge, list[Any]] = {}
        """By where the tensor was then."""
        self._stretches: dict[Edge, Stretch] = {}

    def add(self, node: Any, following: Sequence[Edge]) -> None:
        name: str = node.name()
        if not following or not (name.endswith(WRITTEN) or name.startswith(AGAIN)):
            return
        if name.endswith(WRITTEN):
            self._writes[following[0]] = node
        else:
            self._again.setdefault(following[0], []).append(node)

    def trace(self, view: NotedView, noted_at: Any) -> Trace:
        trace = Trace()
        stretch = self._stretch((noted_at, view.slot), view.whole)
        unknown = 0
        while stretch is not None and not trace.ended():
            trace.add_uses(view, stretch)
            unknown += bool(trace.writes) and trace.writes[-1][1] is Write.UNKNOWN
            self._left -= 1 + len(stretch.again)
            trace.lost = trace.lost or unknown > _UNKNOWN or self._left < 0
            if stretch.write is not None and not trace.ended():
                trace.writes.append((stretch.write, stretch.effect(view)))
            stretch = stretch.following
        return trace

    def _stretch(self, edge: Edge, whole: Layout) -> Stretch | None:
        """That began when a tensor, which lies as `whole`, had this place in the graph."""
        if edge not in self._stretches:
            first = edge
            # A tensor can have been written to first when it took no gradient.
            while first[0].name().endswith(WRITTEN) and first[0].next_functions[0][0] is not None:
                first = first[0].next_functions[0]
            self._make_stretches(first, whole)
        return self._stretches.get(edge)

    def _make_stretches(self, edge: Edge, whole: Layout) -> None:
        before: Stretch | None = None
        while True:
            stretch = self._stretches[edge] = Stretch(before, edge)
            stretch.again = [(node, Extent.of(_layout(node, whole))) for node in self._again.get(edge, ())]
            if before is not None:
                before.following = stretch
            stretch.write = self._writes.get(edge)
            if stretch.write is None:
                return
            region = written_region(stretch.write, whole)
            stretch.region = None if region is None else Extent.of(region)
            before, edge = stretch, (stretch.write, 0)


def _layout(node: Any, whole: Layout) -> Layout:
    """Of a view of a tensor that lies as `whole`, by the node that it had again."""
    offset = node._saved_storage_offset
    return whole._replace(
        size=node._saved_size, stride=node._saved_stride, offset=whole.offset if offset is None else offset
    )


def _is_use(view: NotedView, node: Any, extent: Extent, stretch: Stretch) -> bool | None:
    """Whether `node` is of `view` or a view of it, which lies there: a noted one, or one that no recorded call has
    made."""
    if node._sequence_nr() <= view.node_number or view.extent.overlaps(extent) is False:
        return False
    candidates, certain = _candidates(node, stretch, extent.layout)
    through = {one.includes(view.ancestry.number) for one in candidates}
    if view in stretch.views:
        # Its own node is the last one, unless it was written to without recording. A view from before the last write
        # gets its node when it is used.
        if True not in through or not stretch.has_unrecorded_writes(view):
            return False
    else:
        certain = True
        if through == {False} or (not through and not extent.can_lie_in(view.extent)):
            return False
    return True if through == {True} and certain and not extent.layout.overlaps_itself() else None


def _candidates(node: Any, stretch: Stretch, layout: Layout) -> tuple[list[Ancestry], bool]:
    """Of the noted views that `node` can be of; and whether it is of one of them for certain."""
    own: Ancestry | None = node.metadata.get(OWN)
    if own is not None:
        return [own], True
    views = list(stretch.alike(layout))
    for view in views:
        tensor = view.tensor()
        if tensor is not None and not has_lost_its_node(tensor) and tensor.grad_fn is node:
            return [view.ancestry], True
    return [view.ancestry for view in views if _had_others(view)], False


def _had_others(view: NotedView) -> bool:
    """Whether a view may have had another node than its own."""
    tensor: Any = view.tensor()
    return tensor is None or has_lost_its_node(tensor) or tensor.grad_fn._sequence_nr() != view.node_number
