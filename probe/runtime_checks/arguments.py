"""The arguments of a call that is being made, in the form in which `Call` takes those of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from probe.backends.protocol import FrameworkAdapter
from probe.calls.arguments import PlainValue, Unreadable
from probe.common.containers import MAX_DEPTH
from probe.common.numerics.formats import is_float, rounds

_PLAIN = (bool, int, float, complex, str, np.generic, type(None), type(Ellipsis))


@dataclass(frozen=True)
class LiveLeaf:
    """The place of one tensor."""

    number: int
    dtype: str
    """Its plain name: ``bfloat16``."""
    device: str
    is_differentiated: bool
    """True if the call has a gradient for it."""

    @property
    def is_float(self) -> bool:
        """True if it can be rounded, moved and differentiated."""
        return is_float(self.dtype)


@dataclass(frozen=True)
class _Place:
    number: int


@dataclass(frozen=True)
class _Own:
    """A value of the framework's own, and its entry in a dump."""

    value: Any
    entry: Mapping[str, Any]


class LiveArguments:
    """What a function is called with: a tree of plain values with a place for each tensor.

    Raises:
        Unreadable: there is a value whose state another call would change, or that is not known.
    """

    def __init__(self, adapter: FrameworkAdapter, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.leaves: list[LiveLeaf] = []
        """The tensors in the order of the arguments; one that is given twice is one."""
        self.tensors: list[Any] = []
        """The tensors themselves."""
        self._execution, self._describe_value = adapter.execution, adapter.tensors.describe_value
        self._known: dict[int, _Place] = {}
        self._args = [self._read(value, None, 0) for value in args]
        self._kwargs = {key: self._read(value, key, 0) for key, value in kwargs.items()}

    def forget_tensors(self) -> list[Any]:
        """Copies of the tensors as they are now, of which alone is known from now on."""
        copies = [self._execution.copied(tensor) for tensor in self.tensors]
        self.tensors, self._known = [], {}
        return copies

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments without tensors: by keyword, or by their number as text."""
        found = {str(place): value for place, value in enumerate(self._args)}
        found.update(self._kwargs)
        return {key: _shown(value) for key, value in found.items() if not isinstance(value, _Place)}

    def bound(
        self,
        tensors: Sequence[Any],
        plain_value: Optional[PlainValue] = None,  # noqa: UP045 (evaluated)
    ) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the keyword arguments, with `tensors` in the places of the leaves.

        Args:
            plain_value: Makes a value of the framework's own from its entry; without it the value itself is taken.
        """
        args = [_bound(value, tensors, plain_value) for value in self._args]
        return args, {key: _bound(value, tensors, plain_value) for key, value in self._kwargs.items()}

    def _read(self, value: Any, key: str | None, depth: int) -> Any:
        if self._execution.is_tensor(value):
            return self._place(value)
        if isinstance(value, _PLAIN):
            return value
        entry = self._describe_value(value, key)
        if entry is not None:
            return _Own(value, entry)
        if depth < MAX_DEPTH:
            if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_make")):
                return _like(value, [self._read(each, key, depth + 1) for each in value])
            if type(value) is dict:
                return {name: self._read(each, str(name), depth + 1) for name, each in value.items()}
            if isinstance(value, slice):
                parts = (value.start, value.stop, value.step)
                return slice(*(self._read(each, None, depth + 1) for each in parts))
        # A generator would be advanced, a function could do anything.
        raise Unreadable(f"an argument of type {type(value).__name__} is none that it can be called with again")

    def _place(self, tensor: Any) -> _Place:
        place = self._known.get(id(tensor))
        if place is None:
            execution = self._execution
            dtype = execution.dtype_name(tensor)
            takes = bool(getattr(tensor, "requires_grad", False)) and rounds(dtype)
            place = self._known[id(tensor)] = _Place(len(self.leaves))
            self.leaves.append(LiveLeaf(place.number, dtype, execution.device_name(tensor), takes))
            self.tensors.append(tensor)
        return place


def _like(container: Any, items: list[Any]) -> Any:
    if isinstance(container, list):
        return items
    return type(container)._make(items) if hasattr(container, "_make") else tuple(items)


def _bound(value: Any, tensors: Sequence[Any], plain_value: PlainValue | None) -> Any:
    if isinstance(value, _Place):
        return tensors[value.number]
    if isinstance(value, _Own):
        return value.value if plain_value is None else plain_value(value.entry)
    if isinstance(value, (list, tuple)):
        return _like(value, [_bound(each, tensors, plain_value) for each in value])
    if isinstance(value, dict):
        return {key: _bound(each, tensors, plain_value) for key, each in value.items()}
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(_bound(each, tensors, plain_value) for each in parts))
    return value


def _shown(value: Any) -> Any:
    if isinstance(value, _Own):
        return value.entry.get("value", value.entry.get("format"))
    if isinstance(value, (list, tuple)):
        return [_shown(each) for each in value]
    return None if isinstance(value, _Place) else value
