"""The backward of API calls, found at the gradient nodes that they made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from probe.backends.torch.autograd.views import can_be_cut
from probe.backends.torch.guards import safely, skipped
from probe.common.containers import found_in
from probe.common.view_backward import Parts

if TYPE_CHECKING:
    from probe.backends.torch.hooks.api_hooks import ApiHooks


def _result_around(view: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The tensor that `view` is of, if the call itself made it, as ``linear`` can; else ``None``."""
    whole: Any = view._base
    # First of all what nearly all have: the argument that they make a view of.
    if args and (whole is args[0] or (isinstance(args[0], torch.Tensor) and whole is args[0]._base)):
        return None
    if whole.grad_fn is None or not can_be_cut(whole):
        return None
    return None if _made_of(view, args, kwargs) is not None else whole


def _made_of(view: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The argument that `view` is a view of, or another view of the same tensor."""
    whole = view._base
    for value in (*args, *kwargs.values()):
        # Few arguments are containers, and to look for what is in them takes longer than all else here.
        tensors = (value,) if value is None or isinstance(value, torch.Tensor) else found_in(value, torch.Tensor)
        for tensor in tensors:
            if tensor is whole or (tensor is not None and tensor._base is whole):
                return tensor
    return None


class _Backward:
    """The backward of one call: a hook on its gradient node.

    One object for the garbage collector, as `node_hooks.NodeHook` is; what writes to a view is rare.
    Implements `ViewBackward` and `Later` of `probe.common.view_backward` too.
    """

    __slots__ = ("_call", "_hooks", "_known", "_later", "_number")

    def __init__(self, hooks: ApiHooks, call: Any, number: int) -> None:
        self._hooks = hooks
        self._call = call
        self._number = number
        self._later: tuple[Parts, int] | None = None
        """What does not arrive here and has not been reported."""
        self._known = True
        """Whether what arrives here, and that, are all of it."""

    @skipped
    def __call__(self, grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
        hooks = self._hooks
        if not self._known:
            return
        if self._later is not None and hooks.flow.runs_now(self._later[1]):
            safely(hooks.listener, self._call, self._report_together, grad_input, grad_output)
            return
        # What a hook returns takes the gradient's place.
        safely(hooks.listener, self._call, hooks.backward, self._call, self._number, grad_input, grad_output)

    def written(self, number: int, parts: Parts) -> None:
        self._later = parts, self._hooks.flow.when_reached(self._call, number, self)

    def unknown(self) -> None:
        self._known = False

    def report(self) -> None:
        if self._later is not None:
            parts, self._later = self._later[0], None
            found = parts() if self._known else None
            if found is not None:
                gradient, given = found
                self._hooks.listener.backward_api(self._call, [gradient], [given])

    def drop(self) -> None:
        self._later = None

    def _report_together(self, grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
        assert self._later is not None
        parts, self._later = self._later[0], None
        found = parts()
        if found is None:
            return
        gradient, given = found
        both = [_sum(grad_input[0], given)], [_sum(grad_output[0], gradient)]
        self._hooks.backward(self._call, self._number, *both)


def _sum(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    # Of a call that makes a view of a view, one is the gradient of what lies between.
    return torch.add(one, other) if one.shape == other.shape else None
