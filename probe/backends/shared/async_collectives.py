"""Asynchronous communication: the output of a call is known when the user has waited for its work handle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from probe.backends.shared.patching import Attributes
from probe.common.interfaces import Listener


class AsyncWorkHandles:
    """Completes the records of asynchronous collective calls in ``wait()``.

    Reading the tensors when the call returns would race with the transfer, so a call that is never waited for has no
    output.

    Args:
        find_types: Gives the framework's classes of async work handles, each with a method ``wait``; asked at each
            `install`.
        guarded: Calls a function with arguments for a listener, and reports a failure to it.
    """

    def __init__(
        self, listener: Listener, find_types: Callable[[], Sequence[type]], guarded: Callable[..., Any]
    ) -> None:
        self._listener = listener
        self._find_types = find_types
        self._types: tuple[type, ...] = ()
        self._guarded = guarded
        # The handle is kept with the call: an identity must not be given to another object meanwhile.
        self._held: dict[int, tuple[Any, list[Any]]] = {}
        self._attributes = Attributes()

    def hold(self, call: Any, returned: Any, result: Any) -> bool:
        """True if `returned` is an async work handle, or several; if so the record waits for them."""
        several = returned if isinstance(returned, (list, tuple)) else [returned]
        handles = [handle for handle in several if isinstance(handle, self._types)]
        if not handles:
            return False
        left = [len(handles)]
        for handle in handles:
            self._held[id(handle)] = (handle, [call, result, left])
        self._guarded(self._listener, call, self._listener.suspend_api, call)
        return True

    def install(self) -> None:
        """Watch ``wait`` of every class of handles."""
        self._attributes.remove()
        self._types = tuple(self._find_types())
        for handle_type in self._types:
            if "wait" in vars(handle_type):
                self._attributes.set(handle_type, "wait", self._waiting(vars(handle_type)["wait"]))

    def remove(self) -> None:
        """Watch no longer, once nothing is waited for."""
        if not self._held:
            self._attributes.remove()

    def forget(self) -> None:
        """The step is over: what was not waited for stays without an output."""
        self._held.clear()
        self._attributes.remove()

    def _waiting(self, wait: Any) -> Callable[..., Any]:
        plain = getattr(wait, "__func__", wait)  # pybind11 wraps its methods

        def wait_and_report(handle: Any, *args: Any, **kwargs: Any) -> Any:
            result = plain(handle, *args, **kwargs)
            held = self._held.pop(id(handle), None)
            if held is not None:
                call, output, left = held[1]
                left[0] -= 1
                if left[0] == 0:
                    self._guarded(self._listener, call, self._listener.update_api, call, output)
            return result

        return wait_and_report
