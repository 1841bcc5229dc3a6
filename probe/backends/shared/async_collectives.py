"""Communication that works in the background: its output is known when the user has waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from probe.backends.shared.patching import Attributes
from probe.common.interfaces import Listener


class Works:
    """Completes the records of asynchronous collective calls in ``wait()``.

    Reading the tensors when the call returns would race with the transfer, so a call that is never waited for has no
    output.

    Args:
        find_kinds: Gives the framework's classes of such work, each with a method ``wait``; asked at each `install`.
        safely: Calls a function with arguments for a listener, and reports a failure to it.
    """

    def __init__(
        self, listener: Listener, find_kinds: Callable[[], Sequence[type]], safely: Callable[..., Any]
    ) -> None:
        self._listener = listener
        self._find_kinds = find_kinds
        self._kinds: tuple[type, ...] = ()
        self._safely = safely
        # The work object is kept with the call: an identity must not be given to another object meanwhile.
        self._held: dict[int, tuple[Any, list[Any]]] = {}
        self._attributes = Attributes()

    def hold(self, call: Any, returned: Any, result: Any) -> bool:
        """Whether `returned` is work in the background; if so the record waits for it."""
        several = returned if isinstance(returned, (list, tuple)) else [returned]
        works = [work for work in several if isinstance(work, self._kinds)]
        if not works:
            return False
        left = [len(works)]
        for work in works:
            self._held[id(work)] = (work, [call, result, left])
        self._safely(self._listener, call, self._listener.suspend_api, call)
        return True

    def install(self) -> None:
        """Watch ``wait`` of every kind of work."""
        self._attributes.remove()
        self._kinds = tuple(self._find_kinds())
        for kind in self._kinds:
            if "wait" in vars(kind):
                self._attributes.set(kind, "wait", self._waiting(vars(kind)["wait"]))

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

        def wait_and_report(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = plain(work, *args, **kwargs)
            held = self._held.pop(id(work), None)
            if held is not None:
                call, output, left = held[1]
                left[0] -= 1
                if left[0] == 0:
                    self._safely(self._listener, call, self._listener.update_api, call, output)
            return result

        return wait_and_report
