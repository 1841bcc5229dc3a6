"""Reporting the calls of hooked functions, and their backward at the gradient nodes that they made."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import torch

from probe.backends.shared.async_collectives import AsyncWorkHandles
from probe.backends.shared.backward_tracker import BackwardTracker
from probe.backends.torch import internals
from probe.backends.torch.gradient_graph import TorchGraph
from probe.backends.torch.guards import compiling, guarded, passed_over, skipped
from probe.backends.torch.originals import own
from probe.backends.torch.views import Part, WriteCheck, has_lost_its_node, write_check, written_through
from probe.common.callstack import hide_own_frames
from probe.common.interfaces import ApiName, Listener

_grad_enabled = torch.is_grad_enabled
_Tensor = torch.Tensor


class ApiBackward:
    """Reports the backward of API calls to a listener."""

    def __init__(self, listener: Listener, tracker: BackwardTracker, graph: TorchGraph) -> None:
        self.listener = listener
        self.advance = tracker.advance
        self._register_posthook = graph.register_posthook
        self.hook: Callable[[Any, int, WriteCheck | None], Callable[..., None]]
        self.hook = functools.partial(_CallHook, self)
        """Makes the hook on the gradient node of a call, of the call, the number of the node, and what tells whether a
        returned view was written to: then only a part of its gradient arrives there."""

    def watch(self, call: Any, name: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """Call after the forward of a call whose backward is wanted."""
        if not _grad_enabled():
            return
        tensor = output if type(output) is _Tensor else _first_tensor(output)
        if tensor is None or not tensor.requires_grad:
            return
        # A dropout of probability 0 has no backward by contract.
        if "dropout" in name.api and _drops_nothing(args, kwargs):
            return
        is_written = None
        if own._is_view(tensor):
            write = written_through(tensor, args, kwargs)
            if write is not None:
                self._watch_write(call, tensor, write)
                return
            if has_lost_its_node(tensor):
                return
            is_written = write_check(tensor)
        node = tensor.grad_fn
        if node is not None:
            self._register_posthook(node, self.hook(call, node._sequence_nr(), is_written))

    def _watch_write(self, call: Any, view: torch.Tensor, node: Any) -> None:
        number, part = node._sequence_nr(), Part.of(view)

        def backward(grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
            # The first input is the whole tensor before, the others are what was written from.
            inputs = [part(grad_input[0]), *grad_input[1:]]
            self.report(call, number, inputs, [part(gradient) for gradient in grad_output])

        self._register_posthook(node, functools.partial(guarded, self.listener, call, backward))

    @skipped
    def arrived(
        self,
        call: Any,
        number: int,
        is_written: WriteCheck | None,
        grad_input: Sequence[Any],
        grad_output: Sequence[Any],
    ) -> None:
        """The gradients of a call have arrived at its node, see `hook`."""

        def report() -> None:
            if is_written is not None and is_written():
                self.report(call, number, [None] * len(grad_input), [None] * len(grad_output))
            else:
                self.report(call, number, grad_input, grad_output)

        guarded(self.listener, call, report)

    def report(self, call: Any, number: int, grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
        """The call's node, which has the sequence number `number`, has run."""
        self.advance(number)
        self.listener.backward_api(call, grad_output, grad_input)


class _CallHook:
    """The hook on the gradient node of one call: one object for the garbage collector, as a `NodeHook` is."""

    __slots__ = ("_backward", "_call", "_is_written", "_number")

    def __init__(self, backward: ApiBackward, call: Any, number: int, is_written: WriteCheck | None) -> None:
        self._backward = backward
        self._call = call
        self._number = number
        self._is_written = is_written

    @skipped
    def __call__(self, grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
        # Returns nothing: what a hook returns takes the gradient's place.
        self._backward.arrived(self._call, self._number, self._is_written, grad_input, grad_output)


def _drops_nothing(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    probability = kwargs.get("p", args[1] if len(args) > 1 else None)
    return isinstance(probability, (int, float)) and probability == 0


def _first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor of an output: first element recursively, first tensor value of a dictionary."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (list, tuple)) and value:
        return _first_tensor(value[0])
    if isinstance(value, Mapping):
        return next((item for item in value.values() if isinstance(item, torch.Tensor)), None)
    return None


# --- api calls


all_disabled = internals.function_modes_disabled


class ApiCalls:
    """Runs functions and reports their calls to a listener.

    Args:
        without_mode: Calls a function without the tool's function mode in the way of what it calls.
    """

    def __init__(
        self,
        listener: Listener,
        tracker: BackwardTracker,
        backward: ApiBackward,
        without_mode: Callable[..., Any],
    ) -> None:
        self._listener = listener
        self._tracker = tracker
        self._backward = backward
        self.without_mode = without_mode
        self.call: Callable[..., Any] = self.observe
        self.call_beneath: Callable[..., Any] = self.observe_beneath
        """Both do what `observe` and `observe_beneath` do, perhaps compiled."""
        self.async_handles = AsyncWorkHandles(listener, _async_work_types, guarded)

    @passed_over
    def observe(
        self, name: ApiName, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call `function` and report it. Where the tool has no part in the call, do not come here."""
        listener = self._listener
        call = guarded(listener, name, self._enter, name, args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        try:
            output = function(*args, **kwargs)
            if output is NotImplemented:
                # An operator that leaves the work to the other operand.
                guarded(listener, call, listener.cancel_api, call)
            elif name.returns_arguments:
                result = (*args, *kwargs.values())
                if guarded(listener, call, _is_coalesced):
                    # It runs with others when the block around it ends, and nothing says when its result is there.
                    guarded(listener, call, listener.suspend_api, call)
                elif not guarded(listener, call, self.async_handles.hold, call, output, result):
                    guarded(listener, call, listener.leave_api, call, result)
            else:
                guarded(listener, call, self._leave, call, name, args, kwargs, output)
            return output
        except BaseException:
            # The function's own, or an interrupt, which may come while the end of the call is reported.
            guarded(listener, call, listener.fail_api, call)
            raise

    @passed_over
    def observe_beneath(
        self, name: ApiName, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """`observe` of a function whose inner calls are of no interest."""
        return self.observe(name, functools.partial(self.without_mode, function), args, kwargs)

    def _enter(self, name: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._tracker.advance_to_current()
        return self._listener.enter_api(name, args, kwargs)

    def _leave(self, call: Any, name: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        if self._listener.leave_api(call, output):
            self._backward.watch(call, name, args, kwargs, output)

    def wrapper(self, name: ApiName, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls `function` and reports it."""
        observe = self.call_beneath

        # torch's compiler can only read a function that refers to nothing but functions.
        @passed_over
        def record(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return observe(name, function, args, kwargs)

        @passed_over
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if compiling() or all_disabled():
                # Not the user's own call, or one where the user wants no interception.
                return function(*args, **kwargs)
            try:
                return record(args, kwargs)
            except BaseException as error:
                hide_own_frames(error)
                raise

        return wrapper


def _is_coalesced() -> bool:
    """True if calls of communication are being gathered, to be run together later."""
    return bool(getattr(internals.world(), "pg_coalesce_state", None))


def _async_work_types() -> list[type]:
    if not torch.distributed.is_available():
        return []
    types: list[type] = []
    ahead = list(internals.work_types())
    while ahead:
        kind = ahead.pop()
        types.append(kind)
        ahead += kind.__subclasses__()
    return types
