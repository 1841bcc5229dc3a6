"""Call stacks as a page has them: each line once, each stack once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from probe.graph.page.texts import Texts


class StackTable:
    """The stacks of several dumps, each once; a stack is indices of its lines."""

    def __init__(self) -> None:
        self.frames = Texts()
        self._indexes: dict[tuple[int, ...], int] = {}

    @property
    def stacks(self) -> list[tuple[int, ...]]:
        return list(self._indexes)

    def index(self, stack: tuple[int, ...]) -> int:
        """The index of a stack, given the indexes of its lines."""
        return self._indexes.setdefault(stack, len(self._indexes))

    def add(self, names: Sequence[str], stacks: Mapping[str, list[str]] | None) -> NDArray[np.int64]:
        """The index of the stack of each of `names`; -1 without one."""
        if not stacks:
            return np.full(len(names), -1, dtype=np.int64)
        # Calls from the same place share one list.
        different = {id(stack): stack for stack in stacks.values()}
        index = self.frames.index
        indexes = {key: self.index(tuple(map(index, stack))) if stack else -1 for key, stack in different.items()}
        nothing: list[str] = []
        indexes[id(nothing)] = -1
        return np.array([indexes[id(stacks.get(name, nothing))] for name in names], dtype=np.int64)
