"""The arguments of a recorded call: a tree of plain values, with a numbered place for each tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from typing_extensions import Protocol

from probe.common.dump.json_decode import number
from probe.common.dump.reading.flattening import add
from probe.common.dump.reading.items import INPUT, Item, as_shape
from probe.common.numerics.formats import is_float, plain_name, rounds

PlainValue = Callable[[Mapping[str, Any]], Any]
"""Makes a value of a framework's own from its entry."""
_PLAIN = {"int": int, "float": float, "bool": bool, "str": str, "complex": complex}


class Unreadable(Exception):
    """Why a call cannot be made from its record, in words for the user."""


class CallLeaf(Protocol):
    """The place of one tensor among the arguments of a call."""

    @property
    def dtype(self) -> str:
        """Its plain name."""

    @property
    def is_float(self) -> bool: ...

    @property
    def is_differentiated(self) -> bool: ...


class CallArguments(Protocol):
    """What a function is called with, its tensors apart from everything else."""

    @property
    def leaves(self) -> Sequence[CallLeaf]:
        """The places of the tensors, in the order in which `bound` takes tensors."""

    def bound(self, tensors: Sequence[Any], plain_value: PlainValue) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the keyword arguments, with `tensors` in the places of the leaves."""


@dataclass(frozen=True)
class Leaf:
    """The place of one tensor."""

    number: int
    item: Item
    """Name, shape, statistics and file as the record has them."""
    dtype: str
    """Its plain name: ``bfloat16``."""
    shape: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        """Whether it can be rounded, moved and differentiated."""
        return is_float(self.dtype)

    @property
    def is_differentiated(self) -> bool:
        """Whether the call has a gradient for it; records of MindSpore do not say for which it was asked."""
        return self.item.requires_grad is not False and rounds(self.dtype)


@dataclass(frozen=True)
class _Own:
    """A value of the framework's own."""

    entry: Mapping[str, Any]


class Arguments:
    """What a forward record says the function was called with.

    Raises:
        Unreadable: an argument has no form from which it could be made again.
        DumpFormatError: the record is damaged.
    """

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.leaves: list[Leaf] = []
        """The tensors in the order of the arguments, keyword arguments behind."""
        positional = fields.get("input_args", fields.get("input")) or []
        named = fields.get("input_kwargs") or {}
        if not isinstance(positional, list) or not isinstance(named, dict):
            raise Unreadable("its arguments are neither a list nor a mapping")
        self._args = [self._read(f"{name}.{INPUT}.{i}", each) for i, each in enumerate(positional)]
        self._kwargs = {key: self._read(f"{name}.{INPUT}.{key}", each) for key, each in named.items()}
        if name.split(".")[1] in _WITH_INDEX and len(self._args) > 1 and isinstance(self._args[1], list):
            self._args[1] = _index(self._args[1])

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments without tensors: by keyword, or by their number as text."""
        found = {str(place): value for place, value in enumerate(self._args)}
        found.update(self._kwargs)
        return {key: _shown(value) for key, value in found.items() if not isinstance(value, Leaf)}

    def bound(self, tensors: Sequence[Any], plain_value: PlainValue) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the keyword arguments, with `tensors` in the places of the leaves."""
        args = [_bound(value, tensors, plain_value) for value in self._args]
        return args, {key: _bound(value, tensors, plain_value) for key, value in self._kwargs.items()}

    def _read(self, name: str, entry: Any) -> Any:
        if entry is None:
            return None
        if isinstance(entry, list):
            return [self._read(f"{name}.{i}", each) for i, each in enumerate(entry)]
        if not isinstance(entry, dict):
            raise Unreadable(f"{name} is {entry!r}, which is no entry")
        kind = entry.get("type")
        if not isinstance(kind, str):
            return {key: self._read(f"{name}.{key}", each) for key, each in entry.items()}
        if "dtype" in entry and "shape" in entry:
            return self._leaf(name, entry)
        return _plain(name, kind, entry)

    def _leaf(self, name: str, entry: Mapping[str, Any]) -> Leaf:
        found: list[Item] = []
        add(found, name, INPUT, entry, 0)
        item = found[0]
        shape = as_shape(entry["shape"])
        if shape is None or item.dtype is None:
            raise Unreadable(f"{name} has no shape")
        leaf = Leaf(len(self.leaves), item, plain_name(item.dtype), shape)
        self.leaves.append(leaf)
        return leaf


_WITH_INDEX = ("__getitem__", "__setitem__")


def _index(parts: list[Any]) -> tuple[Any, ...]:
    """An index of several dimensions, which a dump writes as a list.

    Raises:
        Unreadable: it holds numbers alone, which mean something else in a list than in a tuple.
    """
    if all(isinstance(part, (int, list)) for part in parts):
        raise Unreadable("the dump does not say whether its index was a list or a tuple")
    return tuple(parts)


def _plain(name: str, kind: str, entry: Mapping[str, Any]) -> Any:
    value = number(entry.get("value", entry.get("format")))
    if kind == "slice":
        return slice(*value) if isinstance(value, list) else slice(None)
    if kind == "ellipsis":
        return Ellipsis
    if kind in ("NoneType", "None"):
        return None
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    if "value" in entry and isinstance(value, (bool, int, float)) and "." not in kind:
        # A scalar of numpy.
        return value
    return _Own(entry)


def _bound(value: Any, tensors: Sequence[Any], plain_value: PlainValue) -> Any:
    if isinstance(value, Leaf):
        return tensors[value.number]
    if isinstance(value, _Own):
        return plain_value(value.entry)
    if isinstance(value, list):
        return [_bound(each, tensors, plain_value) for each in value]
    if isinstance(value, tuple):
        return tuple(_bound(each, tensors, plain_value) for each in value)
    if isinstance(value, dict):
        return {key: _bound(each, tensors, plain_value) for key, each in value.items()}
    return value


def _shown(value: Any) -> Any:
    if isinstance(value, _Own):
        return value.entry.get("value", value.entry.get("format"))
    if isinstance(value, (list, tuple)):
        return [_shown(each) for each in value]
    return None if isinstance(value, Leaf) else value
