"""The calls that run on each thread, and which is inside which."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any, Callable

from probe.common.interfaces import ApiName


class ActiveCall:
    """One call of an API or module that is, or may be, recorded."""

    __slots__ = (
        "__weakref__",
        "api",
        "arguments",
        "base",
        "begun",
        "fields",
        "frame",
        "held",
        "name",
        "number",
        "opened",
        "order",
        "parent",
        "stack",
        "step",
        "wanted",
    )  # fmt: skip

    def __init__(self, base: str, number: int, name: str, begun: int, parent: str | None, step: object) -> None:
        self.base = base
        self.number = number
        self.name = name
        self.begun = begun
        self.order = begun
        self.parent = parent
        self.stack = -1
        self.wanted = False
        self.fields: dict[str, Any] = {}
        self.step = step
        """The step in which it was called, a `CollectedStep`."""
        self.frame: FrameType | None = None
        """The caller's frame, of a module's forward while it runs."""
        self.api: ApiName | None = None
        self.arguments: Any = None
        """The arguments, as long as they are needed."""
        self.opened: list[ActiveCall] | None = None
        """The active calls of the thread on which a backward began."""
        self.held: list[Any] | None = None
        """The tensors that a sink keeps until it is known if those of the call are wanted."""


class ActiveCalls(threading.local):
    """The calls that run on one thread, and which is inside which."""

    def __init__(self) -> None:
        self.in_api = False
        self.calls: list[ActiveCall] = []
        """The modules, optimizer steps and backwards that run, outermost first."""


def innermost(opened: list[ActiveCall], left: Callable[[ActiveCall], Any]) -> str | None:
    """The name of the innermost active call, asked by the function that the user's frame, or torch's, has called.

    A call whose frame is not below this one was left without a post-hook, by KeyboardInterrupt for example: it is taken
    out, and `left` is called with it.
    """
    while opened:
        call = opened[-1]
        frame = call.frame
        if frame is None:
            return call.name
        below: FrameType | None = sys._getframe(2)
        while below is not None and below is not frame:
            below = below.f_back
        if below is frame:
            return call.name
        opened.pop()
        call.frame = None
        left(call)
    return None


def close(opened: list[ActiveCall], call: ActiveCall, left: Callable[[ActiveCall], Any]) -> None:
    """Leave `call` and whatever inside it did not end by itself; `left` is called with each of these."""
    # A backward can begin and end on different threads of the engine.
    if call.opened is not None:
        opened = call.opened
    # A frame holds everything its function knows, and the call is held by the gradient graph.
    call.frame = None
    if opened and opened[-1] is call:
        opened.pop()
        return
    for i in range(len(opened) - 1, -1, -1):
        if opened[i] is call:
            # A backward may end after ones that began later; only forward calls are strictly nested.
            if call.opened is not None:
                del opened[i]
                return
            inside = opened[i + 1 :]
            del opened[i:]
            for each in reversed(inside):
                # No more will come of it; the others are backwards, which end by themselves.
                if each.frame is not None:
                    each.frame = None
                    left(each)
            return
