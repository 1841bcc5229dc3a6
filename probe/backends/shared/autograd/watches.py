"""The backward of one call while it is under way: what has arrived, and what can still arrive."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from typing_extensions import TypeAlias

from probe.common.interfaces import Listener
from probe.common.view_backward import WrittenLater


class ModuleWatch:
    """The backward of one module call, as often as it happens."""

    __slots__ = (
        "backward", "call", "crossings", "crossings_left", "entered_at", "inputs", "kept", "late", "outputs",
        "outputs_left", "outputs_seen", "received", "shared", "sums", "task", "unknown",
        "written_later",
    )  # fmt: skip
    each_alone = False
    """Whether a tensor given twice has the gradient of each place, where they can be told apart, and not the sum."""
    ends_early = False
    """Whether the backward is complete once all that can arrive has arrived, and not when the engine has passed it."""

    def __init__(self, call: Any, entered_at: int, outputs: int, outputs_seen: int, inputs: int) -> None:
        self.call = call
        self.entered_at = entered_at
        self.outputs = outputs
        self.outputs_seen = outputs_seen
        self.inputs = inputs
        self.crossings = 0
        self.late = False
        """Whether a gradient can arrive when the engine has passed the call: of an input it returned, or of a leaf."""
        self.kept: Any = None
        """What `backward` was before it was complete, for what is late."""
        self.shared: Collection[int] = ()
        """Inputs that more than one edge leads to, whose gradient is a sum."""
        self.unknown: Collection[int] = ()
        """Inputs whose gradient is not all that arrives."""
        self.backward: Any = None
        self.outputs_left = outputs_seen
        self.crossings_left = 0
        self.received = False
        self.sums: dict[int, Any] = {}
        self.task = -1
        self.written_later: dict[int, WrittenLater] = {}
        """Of outputs that are views, what does not arrive at their own nodes and has not been reported."""

    def begin(self, listener: Listener) -> bool:
        self.backward = listener.enter_backward(self.call, self.outputs, self.inputs)
        return self.backward is not None

    def gradient(self, listener: Listener, field: str, index: int, gradient: Any) -> None:
        listener.backward_gradient(self.backward, field, index, gradient)

    def end(self, listener: Listener) -> None:
        listener.leave_backward(self.backward)

    def nothing_left(self) -> bool:
        """Whether nothing can arrive any more."""
        if self.outputs_left > 0:
            return False
        # With no inputs the record stands before those of what is inside.
        return self.inputs == 0 or (self.ends_early and self.crossings_left <= 0)


class CallWatch(ModuleWatch):
    """The backward of one call of a function: reported once, with all gradients."""

    __slots__ = ()
    each_alone = True
    ends_early = True

    def begin(self, listener: Listener) -> bool:
        self.backward = {"input": [None] * self.outputs, "output": [None] * self.inputs}
        return True

    def gradient(self, listener: Listener, field: str, index: int, gradient: Any) -> None:
        self.backward[field][index] = gradient

    def end(self, listener: Listener) -> None:
        listener.backward_api(self.call, self.backward["input"], self.backward["output"])
Watch: TypeAlias = ModuleWatch
