"""The arguments of a call that is being made, a tree as that of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.backends.protocol import FrameworkAdapter, execution_of
from probe.calls.arguments import Arguments, Leaf, OwnValue, Unreadable, same_container
from probe.common.containers import MAX_DEPTH
from probe.common.numerics.formats import rounds

_PLAIN = (bool, int, float, complex, str, np.generic, type(None), type(Ellipsis))


@dataclass(frozen=True)
class LiveLeaf(Leaf):
    """One tensor of a call."""

    device: str


class LiveArguments(Arguments):
    """The arguments of a running call; a tensor that is given twice is one leaf.

    Raises:
        Unreadable: there is a value whose state another call would change, or that is not known.
    """

    leaves: list[LiveLeaf]

    def __init__(self, adapter: FrameworkAdapter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.leaves = []
        self.tensors: list[Any] = []
        """The tensors themselves."""
        self._execution, self._describe_value = execution_of(adapter), adapter.tensors.describe_value
        self._known: dict[int, LiveLeaf] = {}
        read_args = [self._read(value, None, 0) for value in args]
        super().__init__(self.leaves, read_args, {key: self._read(value, key, 0) for key, value in kwargs.items()})

    def forget_tensors(self) -> list[Any]:
        """Copies of the tensors as they are now, of which alone is known from now on."""
        copies = [self._execution.copied(tensor) for tensor in self.tensors]
        self.tensors, self._known = [], {}
        return copies

    def _read(self, value: Any, key: str | None, depth: int) -> Any:
        if self._execution.is_tensor(value):
            return self._leaf(value)
        if isinstance(value, _PLAIN):
            return value
        entry = self._describe_value(value, key)
        if entry is not None:
            return OwnValue(entry, value)
        if depth < MAX_DEPTH:
            if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_make")):
                return same_container(value, [self._read(each, key, depth + 1) for each in value])
            if type(value) is dict:
                return {name: self._read(each, str(name), depth + 1) for name, each in value.items()}
            if isinstance(value, slice):
                parts = (value.start, value.stop, value.step)
                return slice(*(self._read(each, None, depth + 1) for each in parts))
        # A generator would be advanced, a function could do anything.
        raise Unreadable(f"an argument of type {type(value).__name__} cannot be reproduced")

    def _leaf(self, tensor: Any) -> LiveLeaf:
        leaf = self._known.get(id(tensor))
        if leaf is None:
            execution = self._execution
            dtype = execution.dtype_name(tensor)
            takes = bool(getattr(tensor, "requires_grad", False)) and rounds(dtype)
            leaf = self._known[id(tensor)] = LiveLeaf(len(self.leaves), dtype, takes, execution.device_name(tensor))
            self.leaves.append(leaf)
            self.tensors.append(tensor)
        return leaf
