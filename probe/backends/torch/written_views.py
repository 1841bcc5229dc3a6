"""The backward of a call that returned a view, where the view's memory is written to afterwards.

torch takes the gradient node of such a view out of the graph: what is computed from the view later goes through a node
of the write. In the graph that is a node of the tensor that the view is of, between what the tensor was before and what
it is now; the gradient that it sends on is that of what was in the memory before the write, so its part there is that
of the view. A write without recording has no node, and the view another one.

No write tells us. So a view is noted at the node that its tensor had, and the graph is walked through for the writes
when a backward begins, if a view has been noted at all.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch

from probe.backends.torch.quiet import compiling, safely, skipped
from probe.backends.torch.views import WRITTEN, Layout, Part, can_be_cut, has_lost_its_node
from probe.common.contract import Listener
from probe.common.gradient_flow import ViewBackward
from probe.common.substitution import CodeSwap

_VIEWS = "msprobe views"
"""Under which a node of a tensor keeps the views that were made of it,"""
_VIEW = "msprobe view"
"""a view's node the view, once for each call that returned it,"""
_SEEN = "msprobe write seen"
"""a node of a write that it is known through which views it went,"""
_HOOKED = "msprobe write hooked"
"""and that it is watched."""


_next_sequence_number = torch._C._autograd._get_sequence_nr
# All ways to start a backward lead there.
_run: Any = torch.autograd.graph._engine_run_backward


class _View:
    """A view that a call returned, noted at the gradient node of the tensor it is of."""

    __slots__ = ("alone_from", "backward", "given", "layout", "made_of", "number", "slot", "tensor", "through", "whole")

    def __init__(self, view: torch.Tensor, whole: Any, number: int, backward: ViewBackward, alone: bool) -> None:
        self.tensor = weakref.ref(view)
        self.slot = whole.output_nr
        self.number = number
        """Of the view's own node."""
        self.layout = Layout.of(view)
        self.whole = Layout.of(whole)
        self.given: Layout | None = None
        """Of the tensor that the call was given and made a view of."""
        self.made_of: Sequence[_View] | None = None
        """The same noted, none if it is the tensor itself, and ``None`` if it is not known."""
        self.backward = backward
        self.alone_from = _next_sequence_number() if alone else None
        """The number from which on a node that uses the tensor is one of the view, if that is known of all."""
        self.through = alone
        """Whether the first write goes through it, or through a view of it."""

    def parts(self, whole: Any) -> tuple[Any, Any]:
        """Of the gradient of the tensor: the view's, and through it that of what the call was given."""
        own = Part.between(self.layout, self.whole)(whole).clone()
        if self.given is None:
            return own, None
        alone = torch.empty_strided(self.whole.size, self.whole.stride, dtype=whole.dtype, device=whole.device).zero_()
        Part.between(self.layout, self.whole)(alone).copy_(own)
        return own, Part.between(self.given, self.whole)(alone)


class WrittenViews:
    """The views of a step that may be written to. In place from the first one until `forget`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._noted: set[int] = set()
        """The identities of the nodes where views are noted. One may be gone, and another node have its identity."""
        self._swap = CodeSwap(_run, self._run_backward)

    def watch(self, view: torch.Tensor, made_of: Any, backward: ViewBackward, alone: bool = False) -> None:
        """Tell `backward` of what does not arrive at the node of `view`.

        Args:
            view: It has the node that it was made with.
            made_of: What the call was given and made a view of, if it was; `view` itself where it returned that.
            alone: Whether nobody else has its tensor.
        """
        whole: Any = view._base
        node = whole.grad_fn
        if node is None or not can_be_cut(whole):
            return
        own: Any = view.grad_fn
        noted = _View(view, whole, own._sequence_nr(), backward, alone)
        if alone or made_of is whole or made_of is view:
            noted.made_of = ()
        elif made_of is not None and made_of.requires_grad and not has_lost_its_node(made_of):
            noted.made_of = made_of.grad_fn.metadata.get(_VIEW)
        if made_of is not None:
            noted.given = Layout.of(made_of)
        own.metadata.setdefault(_VIEW, []).append(noted)
        node.metadata.setdefault(_VIEWS, []).append(noted)
        if not self._noted:
            self._swap.install()
        self._noted.add(id(node))

    def wrote(self, target: torch.Tensor) -> None:
        """A call has written to `target`: not to what else lies in its tensor."""
        if not self._noted:
            return
        whole: Any = target._base if target._is_view() else target
        write = whole.grad_fn
        if write is None or not write.name().endswith(WRITTEN):
            return
        before, slot = write.next_functions[0]
        views = before.metadata.get(_VIEWS, ()) if id(before) in self._noted else ()
        through = [view for view in views if view.slot == slot and view.tensor() is target]
        known = target is whole or bool(through)
        while through:
            view = through.pop()
            view.through = True
            known = known and view.made_of is not None
            through += view.made_of or ()
        if known:
            write.metadata[_SEEN] = True

    def forget(self) -> None:
        """No gradient of the views so far will be reported."""
        if self._noted:
            self._noted.clear()
            self._swap.restore()

    # --- backward

    def _run_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not compiling():
            safely(self._listener, "writes to views", self._find_writes, args[0] if args else ())
        return self._swap.body(*args, **kwargs)

    @skipped
    def _find_writes(self, roots: Iterable[Any]) -> None:
        # The node of a tensor is asked for next anyway, by torch. An edge of the graph has one.
        ahead: list[Any] = [getattr(root, "node" if isinstance(root, tuple) else "grad_fn") for root in roots]
        seen: set[Any] = {None}
        noted = self._noted
        while ahead:
            node = ahead.pop()
            if node in seen:
                continue
            seen.add(node)
            for at, (following, slot) in enumerate(node.next_functions):
                if id(following) in noted:
                    self._meet(node, at, slot, following.metadata.get(_VIEWS, ()))
                if following not in seen:
                    ahead.append(following)

    def _meet(self, node: Any, at: int, slot: int, views: Sequence[_View]) -> None:
        """`node` uses a tensor, output `slot` of another node, of which `views` were made."""
        if _HOOKED in node.metadata:
            return
        if at == 0 and node.name().endswith(WRITTEN):
            node.metadata[_HOOKED] = True
            elsewhere = _SEEN in node.metadata
            told = [(view, elsewhere and _is_untouched(view)) for view in views if view.slot == slot]
            self._on_departure(node, functools.partial(_report_write, told))
            return
        renewed = [view for view in views if view.slot == slot and _has_now(view, node)]
        if renewed:
            node.metadata[_HOOKED] = True
            self._on_departure(node, functools.partial(_report_new_node, renewed))

    def _on_departure(self, node: Any, report: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        @skipped
        def hook(flowing: Sequence[Any], arrived: Sequence[Any]) -> None:
            # What a hook returns takes the gradient's place.
            safely(self._listener, "a write to a view", report, flowing, arrived)

        node.register_hook(hook)


def _node_now(view: _View) -> Any:
    """The node that has taken the place of the one that the view was made with, if the view has been used since."""
    tensor: Any = view.tensor()
    node = None if tensor is None or has_lost_its_node(tensor) else tensor.grad_fn
    return None if node is None or node._sequence_nr() == view.number else node


def _is_untouched(view: _View) -> bool:
    """Whether a write elsewhere is none of the view's, and its memory not used through it after one."""
    return not view.through and _node_now(view) is None


def _has_now(view: _View, node: Any) -> bool:
    """Whether `node`, which uses the tensor, is the view's new one."""
    if view.alone_from is not None and node._sequence_nr() >= view.alone_from:
        return True
    return _node_now(view) is node


def _report_write(views: Sequence[tuple[_View, bool]], flowing: Sequence[Any], _: Sequence[Any]) -> None:
    whole = flowing[0]
    for view, elsewhere in views if whole is not None else ():
        if not view.layout.overlaps_itself():
            view.backward.written(view.number, *view.parts(whole), elsewhere)


def _report_new_node(views: Sequence[_View], flowing: Sequence[Any], arrived: Sequence[Any]) -> None:
    whole, gradient = flowing[0], arrived[0]
    for view in views:
        if gradient is None or gradient.shape != view.layout.size:
            continue
        given = None
        if whole is not None and view.given is not None:
            given = Part.between(view.given, view.whole)(whole).clone()
        view.backward.written(view.number, gradient.clone(), given, False)
