"""The copy of a value that is saved: arrays on the host at their positions, and everything else as JSON has it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Protocol, TypeAlias

from probe.common.containers import MAX_CONTAINERS, parts_of
from probe.common.dump import naming

_DEEPEST = 100
"""Levels of nesting. A list that holds itself ends here; a guess far above what programs have."""
_LONGEST_TEXT = 1000
"""Characters that are kept of a value that JSON does not have."""
_INLINE = 1000
"""Elements that an array may have to be written into a configuration file. A guess."""
_NUMBERS_AND_TEXTS = "biufcUS"


class HostValues(Protocol):
    """The part of a framework's adapter that brings a tensor to the host; group `Execution` has it."""

    def is_tensor(self, value: Any) -> bool:
        """True if `value` is a tensor of this framework."""

    def values(self, tensor: Any) -> NDArray[Any]:
        """A copy of the values; in float32 for a dtype that numpy lacks."""

    def dtype_name(self, tensor: Any) -> str:
        """The plain name of its dtype."""


@dataclass(frozen=True)
class Array:
    """A copy of a tensor or of a numpy array."""

    values: NDArray[Any]
    dtype: str
    """The plain name of the dtype that it had, such as ``bfloat16``."""
    name: str
    """The position of the array in the value, such as ``0.logits``, which no other has; empty for the value itself."""
    is_tensor: bool = True
    """False for an array of numpy."""


Tree: TypeAlias = Union[Array, bool, int, float, str, "list[Tree]", "dict[str, Tree]", None]


def copied(value: Any, host: HostValues) -> Tree:
    """Copy `value`, which later writes to it do not reach.

    Args:
        value: Tensors, arrays, numbers, texts and ``None`` in any nesting. Any other object becomes its class and text.
        host: The framework.

    Raises:
        Exception: a tensor has no values, or the framework fails.
    """
    return _Copy(host).of(value, (), 0)


def arrays_of(tree: Tree) -> list[Array]:
    """The arrays of a copy, in order."""
    if isinstance(tree, Array):
        return [tree]
    parts: Iterable[Tree] = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return [array for part in parts for array in arrays_of(part)]


def as_json(tree: Tree, entries: Mapping[str, Any]) -> Any:
    """Return the copy as JSON has it.

    Args:
        tree: The copy.
        entries: What stands for each array, by its name.
    """
    if isinstance(tree, Array):
        return entries[tree.name]
    if isinstance(tree, dict):
        return {key: as_json(part, entries) for key, part in tree.items()}
    return [as_json(part, entries) for part in tree] if isinstance(tree, list) else tree


def inline(array: Array) -> Any:
    """The numbers of a small array as nested lists; dtype and shape of a larger one."""
    if array.values.size <= _INLINE and array.values.dtype.kind in "biufU":
        return array.values.tolist()
    return {"dtype": array.dtype, "shape": list(array.values.shape)}


class _Copy:
    def __init__(self, host: HostValues) -> None:
        self._host = host
        self._names: set[str] = set()
        self._left = MAX_CONTAINERS

    def of(self, value: Any, path: tuple[str, ...], depth: int) -> Tree:
        if value is None or isinstance(value, (bool, int, float, str)):
            # A number of numpy is one of Python's as well, and a text may be of a class with a life of its own.
            return _plain(value)
        if self._host.is_tensor(value):
            return self._array(self._host.values(value), self._host.dtype_name(value), path)
        if isinstance(value, np.generic) and not isinstance(value, (np.void, np.object_)):
            return self.of(value.item(), path, depth)
        if isinstance(value, np.ndarray):
            if value.dtype.kind in _NUMBERS_AND_TEXTS:
                return self._array(np.array(value, copy=True, order="C"), value.dtype.name, path, is_tensor=False)
            value = value.tolist()
        parts = _parts(value)
        if parts is None or depth >= _DEEPEST or self._left <= 0:
            return {"type": f"{type(value).__module__}.{type(value).__qualname__}", "value": _text(value)}
        self._left -= 1
        copies = {key: self.of(part, (*path, key), depth + 1) for key, part in _named(parts)}
        return copies if _has_keys(value) else list(copies.values())

    def _array(self, values: NDArray[Any], dtype: str, path: tuple[str, ...], is_tensor: bool = True) -> Array:
        # {"a": {"b": x}, "a.b": y} has two arrays of one name.
        name = naming.unused(".".join(path), self._names)
        self._names.add(name)
        return Array(values, dtype, name, is_tensor)


def _plain(value: Any) -> bool | int | float | str | None:
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def _parts(value: Any) -> Sequence[tuple[Any, Any]] | None:
    parts = parts_of(value)
    if parts is None and isinstance(value, (Sequence, Set)) and not isinstance(value, (bytes, bytearray, memoryview)):
        return list(enumerate(value))
    return parts


def _has_keys(value: Any) -> bool:
    return isinstance(value, Mapping) or not isinstance(value, (Sequence, Set)) or hasattr(value, "_fields")


def _named(parts: Sequence[tuple[Any, Any]]) -> Iterable[tuple[str, Any]]:
    """The parts under texts that differ, as 1 and "1" do not."""
    given: set[str] = set()
    for key, part in parts:
        name = naming.unused(str(key), given)
        given.add(name)
        yield name, part


def _text(value: Any) -> str:
    try:
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)[:_LONGEST_TEXT]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
