"""Reporting the calls of hooked functions, however the hooks see them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Callable

import torch

from probe.backends.shared.async_collectives import AsyncWorkHandles
from probe.backends.shared.autograd.backward_tracker import BackwardTracker
from probe.backends.torch import internals
from probe.backends.torch.guards import compiling, guarded, passed_over
from probe.backends.torch.hooks.api_backward import ApiBackward
from probe.common.callstack import hide_own_frames
from probe.common.interfaces import ApiName, Listener

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

    def _enter(self, name: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._tracker.advance_to_current()
        return self._listener.enter_api(name, args, kwargs)

    def _leave(self, call: Any, name: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        if self._listener.leave_api(call, output):
            self._backward.watch(call, name, args, kwargs, output)

    def wrapper(self, name: ApiName, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls `function` and reports it."""
        inner = functools.partial(self.without_mode, function)
        observe = self.observe

        # torch's compiler can only read a function that refers to nothing but functions.
        @passed_over
        def record(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return observe(name, inner, args, kwargs)

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
