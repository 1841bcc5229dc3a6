"""Gradient graphs of any length can be freed after Python has seen them.

torch frees a node that has a Python object, as a hook gives it one, from inside of the node before: several ten
thousand of them, one behind the other, are more than the stack of a thread has room for, and the process ends. So some
of the nodes that the tool has seen keep those behind them, and let go of them in turn: the chain behind one such node
is freed when that behind the one before has been.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection
from typing import Any

_REST = "msprobe rest"
"""Under which a node keeps what is behind it."""
_NODES = (64, 192)
"""The least and the most nodes from one that keeps what is behind it to the next. They vary, so that it is not the same
operation of a loop each time, which need not be on the way from one pass through it to the next."""


class _Waiting(threading.local):
    """What the thread that frees a graph has still to let go of; ``None`` where it frees none."""

    rests: list[Any] | None = None


_waiting = _Waiting()


class _Rest:
    """What is behind a node."""

    __slots__ = ("_nodes",)

    def __init__(self, node: Any) -> None:
        self._nodes = [following for following, _ in node.next_functions]

    # The default stays when the interpreter ends and takes the module's names.
    def __del__(self, waiting: _Waiting = _waiting) -> None:
        if waiting.rests is not None:
            waiting.rests.append(self._nodes)
            return
        rests = waiting.rests = [self._nodes]
        del self._nodes
        try:
            while rests:
                rests.pop()
        finally:
            waiting.rests = None


class FreedInTurn:
    """Counts the nodes that Python has seen."""

    def __init__(self) -> None:
        self._draw = random.Random(0)
        self._left = 0

    def seen(self, node: Any) -> None:
        self._left -= 1
        if self._left < 0:
            self._keep_rest(node)

    def all_seen(self, nodes: Collection[Any]) -> None:
        """The same for many, in any order; ``None`` is no node."""
        if len(nodes) <= self._left:
            self._left -= len(nodes)
            return
        for node in nodes:
            if node is not None:
                self.seen(node)

    def _keep_rest(self, node: Any) -> None:
        self._left = self._draw.randint(*_NODES)
        metadata = node.metadata
        if _REST not in metadata:
            metadata[_REST] = _Rest(node)
