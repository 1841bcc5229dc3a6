"""The backward of a call that returned a view, where the view's memory is written to afterwards.

torch takes the gradient node of such a view out of the graph: what is computed from the view later goes through a node
of the write. In the graph that is a node of the tensor that the view is of, between what the tensor was before and what
it is now; the gradient that it sends on is that of what was in the memory before the write, so its part there is that
of the view.

No write tells us. So a view is noted at the node that its tensor had, and the graph is walked through for the writes
when a backward begins, if the memory of any view was written to.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from probe.backends.torch.freed_in_turn import FreedInTurn
from probe.backends.torch.quiet import compiling, passed_over, safely, skipped, with_autograd_kernels
from probe.backends.torch.tensors import is_wrapped
from probe.backends.torch.views import WRITTEN, Layout, Part, WriteCounter, can_be_cut, has_lost_its_node
from probe.common.contract import Listener
from probe.common.substitution import CodeSwap
from probe.common.view_backward import ViewBackward

_VIEWS = "msprobe views"
"""Under which a node of a tensor keeps the views that were made of it,"""
_VIEW = "msprobe view"
"""a view's node the view, once for each call that returned it,"""
_SEEN = "msprobe write seen"
"""a node of a write that it is known through which view it went,"""
_TOLD = "msprobe write"
"""and whom to tell of it."""

# All ways to start a backward lead there, in releases of torch that have it.
_run: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)


class _View:
    """A view that a call returned, noted at the gradient node of the tensor it is of."""

    __slots__ = ("backward", "given", "layout", "made_of", "number", "slot", "tensor", "through", "whole")

    def __init__(self, view: torch.Tensor, whole: Any, number: int, backward: ViewBackward, alone: bool) -> None:
        self.tensor = weakref.ref(view)
        self.slot = whole.output_nr
        self.number = number
        """Of the view's own node."""
        self.layout = Layout.of(view)
        self.whole = Layout.of(whole)
        self.given: Layout | None = None
        """Of the tensor that the call was given and made a view of."""
        self.made_of: Sequence[_View] = ()
        """The same, where it is a view that was noted."""
        self.backward = backward
        self.through = alone
        """Whether the first write goes through it, or through a view of it."""

    def numbers(self) -> set[int]:
        """Its own, and those of the views that it was made of."""
        return {self.number}.union(*(view.numbers() for view in self.made_of))

    def parts(self, whole: Any) -> tuple[Any, Any]:
        """Of the gradient of the tensor: the view's, and through it that of what the call was given."""
        if is_wrapped(whole):
            return whole, whole  # has no statistics in any case
        own = Part.between(self.layout, self.whole)(whole)
        if self.given is None:
            return own, None
        alone = torch.empty_strided(self.whole.size, self.whole.stride, dtype=whole.dtype, device=whole.device).zero_()
        Part.between(self.layout, self.whole)(alone).copy_(own)
        return own, Part.between(self.given, self.whole)(alone)

    def is_concerned(self, write: Any, seen: bool) -> bool:
        """Whether some of the gradient of what was in the view comes from `write`, the first to its tensor."""
        if self.layout.overlaps_itself():
            return False
        tensor: Any = self.tensor()
        if self.through or tensor is None:
            return True
        whole = tensor._base
        if has_lost_its_node(tensor):
            # Nobody has used it after the last write. If that was the only one, and elsewhere, it has what arrives.
            return not seen or whole is None or whole.grad_fn is not write
        # torch makes the new node of the view that is written through right after that of the write.
        node = tensor.grad_fn
        self.through = node is not None and node._sequence_nr() == write._sequence_nr() + 1 and not seen
        return node is not None and node._sequence_nr() != self.number


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
        self._swap = None if _run is None else CodeSwap(_run, self._run_backward)
        self._attached = False

    def watch(self, view: torch.Tensor, made_of: Any, backward: ViewBackward, alone: bool = False) -> None:
        """Tell `backward` of what does not arrive at the node of `view`.

        Args:
            view: It has the node that it was made with.
            made_of: What the call was given and made a view of, if it was; `view` itself where it returned that.
            alone: Whether the call made the tensor, and returned nothing else of it.
        """
        whole: Any = view._base
        node = whole.grad_fn
        if self._swap is None or node is None or not can_be_cut(whole):
            return
        own: Any = view.grad_fn
        noted = _View(view, whole, own._sequence_nr(), backward, alone)
        if made_of is not None:
            noted.given = Layout.of(made_of)
            if made_of is not whole and made_of is not view and not has_lost_its_node(made_of):
                above = made_of.grad_fn
                noted.made_of = () if above is None else above.metadata.get(_VIEW, ())
        own.metadata.setdefault(_VIEW, []).append(noted)
        views = node.metadata.get(_VIEWS)
        if views is None:
            views = node.metadata[_VIEWS] = []
            self._noted.add(id(node))
            self._counters.append(WriteCounter(whole))
        views.append(noted)
        if not self._attached:
            self._attached = True
            self._swap.install()

    def wrote(self, target: torch.Tensor) -> None:
        """A call has written to `target`: not to what else lies in its tensor."""
        if not self._noted:
            return
        whole: Any = target._base if target._is_view() else target
        write = whole.grad_fn
        if write is None or not write.name().endswith(WRITTEN):
            return
        before, slot = write.next_functions[0]
        views = [view for view in before.metadata.get(_VIEWS, ()) if view.slot == slot]
        through = [view for view in views if view.tensor() is target]
        if not through and target is not whole:
            # It was made by something that is not recorded, of one of those that it can lie in.
            region = Layout.of(target)
            around = [view for view in views if view.layout.is_around(region)]
            through = [view for view in around if view.numbers().issuperset(other.number for other in around)]
            if around and not through:
                return
        write.metadata[_SEEN] = True
        while through:
            view = through.pop()
            view.through = True
            through += view.made_of

    def remove(self) -> None:
        """Out of the way of the user's backward."""
        if self._swap is not None and self._attached:
            self._attached = False
            self._swap.restore()

    def forget(self) -> None:
        """No gradient of the views so far will be reported."""
        self._noted.clear()
        self._counters.clear()
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
        seen: set[Any] = {None}
        noted = self._noted
        while ahead:
            node = ahead.pop()
            if node in seen:
                continue
            seen.add(node)
            following = node.next_functions
            if following and id(following[0][0]) in noted and node.name().endswith(WRITTEN):
                self._found(node, *following[0])
            ahead += [edge[0] for edge in following if edge[0] not in seen]
        self._freed_in_turn.all_seen(seen)

    def _found(self, write: Any, before: Any, slot: int) -> None:
        """`write` is the first to a tensor of which views were made, output `slot` of `before`."""
        views = [view for view in before.metadata.get(_VIEWS, ()) if view.slot == slot]
        told = write.metadata.get(_TOLD)
        if told is None:
            told = write.metadata[_TOLD] = []
            write.register_hook(functools.partial(_departed, self._listener, told))
        seen = _SEEN in write.metadata
        told[:] = [view for view in views if view.is_concerned(write, seen)]


@skipped
def _departed(listener: Listener, told: Sequence[_View], flowing: Sequence[Any], arrived: Sequence[Any]) -> None:
    # What a hook returns takes the gradient's place.
    safely(listener, "a write to a view", _report, told, flowing[0])


def _report(told: Sequence[_View], whole: Any) -> None:
    if told and whole is not None:
        # One copy for all of them: hooks of the user may change the gradient before they are reported.
        whole = whole.clone()
        for view in told:
            view.backward.written(view.number, functools.partial(view.parts, whole), view.through)
