"""The backward of one call while it is under way: what has arrived, and what can still arrive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from probe.backends.shared.autograd.graph import ReturnedView
from probe.common.interfaces import Listener


class ModuleWatch:
    """The backward of one module call, as often as it happens."""

    __slots__ = (
        "backward", "call", "crossings", "crossings_left", "current_pass", "entered_at", "inputs", "kept", "late",
        "outputs", "outputs_left", "outputs_seen", "received", "shared", "sums", "unknown_inputs", "unknown_outputs",
        "views",
    )  # fmt: skip
    each_alone = False
    """True if a tensor given twice has the gradient of each argument, where they can be told apart, and not the sum."""
    ends_early = False
    """True if the backward is complete once all that can arrive has arrived, and not when the engine has passed it."""

    def __init__(self, call: Any, entered_at: int, outputs: int, outputs_seen: int, inputs: int) -> None:
        self.call = call
        self.entered_at = entered_at
        self.outputs = outputs
        self.outputs_seen = outputs_seen
        self.inputs = inputs
        self.crossings = 0
        self.late = False
        """True if a gradient can arrive when the engine has passed the call: of an input it returned, or of a leaf."""
        self.shared: Collection[int] = ()
        """The inputs that more than one edge leads to, whose gradient is a sum."""
        self.views: Sequence[ReturnedView] = ()
        self.current_pass: Any = None
        """The pass that the backward belongs to."""
        self.backward: Any = None
        """The listener's call while the backward is under way."""
        self.kept: Any = None
        """The backward as it was before it was complete, for late gradients."""
        self.outputs_left = outputs_seen
        self.crossings_left = 0
        self.received = False
        self.sums: dict[int, Any] = {}
        self.unknown_outputs: Collection[int] = ()
        self.unknown_inputs: Collection[int] = ()
        """The outputs and inputs with no gradient in the record, because what arrives may be a part of it."""

    def begin(self, listener: Listener) -> bool:
        self.backward = listener.enter_backward(self.call, self.outputs, self.inputs)
        return self.backward is not None

    def gradient(self, listener: Listener, field: str, index: int, gradient: Any) -> None:
        listener.backward_gradient(self.backward, field, index, gradient)

    def end(self, listener: Listener) -> None:
        listener.leave_backward(self.backward)

    def find_written_views(self) -> None:
        """Find out which gradients are unknown in the pass that begins: those of views written to since the call."""
        written = [view for view in self.views if view.is_written()]
        self.unknown_outputs = {view.output for view in written}
        self.unknown_inputs = {index for view in written for index in view.inputs}

    def nothing_left(self) -> bool:
        """True if nothing can arrive any more."""
        if self.outputs_left > 0:
            return False
        # With no inputs the record stands before those of what is inside.
        return self.inputs == 0 or (self.ends_early and self.crossings_left <= 0)

    def reset(self) -> None:
        """The backward is complete; it may happen again."""
        self.backward = None
        self.received = False
        self.outputs_left = self.outputs_seen
        self.crossings_left = self.crossings


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
