"""Gradient graphs of any length can be freed after Python has seen them.

torch frees a node that has a Python object, as a hook gives it one, from inside of the node before: several ten
thousand of them, one behind the other, are more than the stack of a thread has room for, and the process ends.

Python frees its own containers so that none is too deep inside of others: what would be is put aside, and freed when
the outermost one has been. So some of the nodes that the tool has seen keep those behind them in tuples. These are one
in the other, because newer releases of Python put aside what is ten thousand deep and not fifty, while there are nodes
of torch between two of the tool's. No code in Python runs: an interrupt would be lost in it.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

_REST = "msprobe rest"
"""Under which a node keeps what is behind it."""
_NODES = (8, 24)
"""The least and the most nodes from one that keeps what is behind it to the next. They vary, so that it is not the same
operation of a loop each time, which need not be on the way from one pass through it to the next."""
_TUPLES = 24


class FreedInTurn:
    """Counts the nodes that Python has seen."""

    def __init__(self) -> None:
        self._draw = random.Random(0)
        self._left = 0

    def seen(self, node: Any) -> None:
        self._left -= 1
        if self._left < 0:
            self._left = self._draw.randint(*_NODES)
            _keep_rest(node)

    def all_seen(self, nodes: Collection[Any]) -> None:
        """Note that many nodes were seen, in any order; ``None`` is no node."""
        if len(nodes) <= self._left:
            self._left -= len(nodes)
            return
        for node in nodes:
            if node is not None:
                self.seen(node)


def _keep_rest(node: Any) -> None:
    metadata = node.metadata
    if _REST in metadata:
        return
    rest = tuple(following for following, _ in node.next_functions)
    for _ in range(_TUPLES):
        rest = (rest,)
    metadata[_REST] = rest
