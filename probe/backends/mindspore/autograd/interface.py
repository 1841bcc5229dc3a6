"""The interface of a backward tracker to the hooks of cells and functions, the same for both trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from typing_extensions import Protocol

from probe.backends.shared.autograd.watches import CallWatch, ModuleWatch
from probe.common.interfaces import Listener

Arguments = tuple[Sequence[Any], Mapping[str, Any]]


class PrimitiveWatch(CallWatch):
    """The backward of a primitive.

    By contract its record lists the gradients in the order in which the engine computes them, which is that of the
    outputs and of the arguments from the last to the first, and has no entries for what has no gradient.
    """

    __slots__ = ()

    def end(self, listener: Listener) -> None:
        outputs, inputs = (
            [gradient for gradient in reversed(self.backward[field]) if gradient is not None]
            for field in ("input", "output")
        )
        listener.backward_api(self.call, outputs, inputs)


class Tracker(Protocol):
    """Reports the backward of calls to a listener."""

    def enter(self, kind: type[ModuleWatch], about: Any, arguments: Arguments) -> tuple[Any, Arguments]:
        """Call before a forward. Returns what `leave` needs, and the arguments to go on with."""

    def leave(self, call: Any, entered: Any, output: Any) -> None:
        """Call after the forward: its backward will be reported, unless `entered` is ``None``."""

    def in_collected_pass(self) -> bool:
        """True if the backward that runs now is, among others, that of a call that was collected."""

    def defer(self, report: Callable[[], None]) -> None:
        """Call `report` right before the next module's backward is complete, or at the end of the pass."""

    def finish(self) -> None:
        """Report whatever is still open."""

    def forget(self) -> None:
        """The step is over; no gradient of it will be reported."""
