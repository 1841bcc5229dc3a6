"""A higher recursion limit, for the frames that hooks add to the user's stack.

PyTorch calls a module that has hooks through one frame more, so that a model nested 200 deep would exceed the limit of
1000 frames that it keeps within alone. A module takes three frames at least; half as many more than the limit are
enough for every one of them, and some for what is done at the deepest place.
"""

from __future__ import annotations

import sys

_AT_THE_DEEPEST = 200
"""Frames for what hooks do at the deepest place."""


class RaisedRecursionLimit:
    """Raises the recursion limit until `remove`."""

    def __init__(self) -> None:
        self._before = sys.getrecursionlimit()
        self._raised = self._before + self._before // 2 + _AT_THE_DEEPEST
        sys.setrecursionlimit(self._raised)

    def remove(self) -> None:
        """Put the limit back, unless somebody else has set it in the meantime."""
        if sys.getrecursionlimit() != self._raised:
            return
        try:
            sys.setrecursionlimit(self._before)
        except RecursionError:
            pass  # asked for in a place deeper than that
