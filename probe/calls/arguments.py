"""The arguments of a call: a tree of plain values, with a numbered leaf for each tensor; here those of a record.

Those of a call that is being made are in `probe.runtime_checks.running_call`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, Union

from probe.common.dump.json_decode import number
from probe.common.dump.reading.items import INPUT, Item, add, as_shape
from probe.common.numerics.formats import is_float, plain_name, rounds

PlainValue = Callable[[Mapping[str, Any]], Any]
"""Makes a value of a framework's own from its entry."""
_PLAIN = {"int": int, "float": float, "bool": bool, "str": str, "complex": complex}


class Unreadable(Exception):
    """The reason why a call cannot be made from its record, in words for the user."""


@dataclass(frozen=True)
class Leaf:
    """One tensor among the arguments."""

    number: int
    dtype: str
    """The plain name of the dtype: ``bfloat16``."""
    is_differentiated: bool
    """True if the call has a gradient for it."""

    @property
    def is_float(self) -> bool:
        """True if it can be rounded, moved and differentiated."""
        return is_float(self.dtype)


@dataclass(frozen=True)
class OwnValue:
    """A value of the framework's own, such as a dtype."""

    entry: Mapping[str, Any]
    """The entry as a dump has it."""
    value: Any = None
    """The value itself, where the call is being made."""


class Arguments:
    """The arguments of a function, its tensors apart from everything else.

    Args:
        leaves: The tensors, in the order in which `bound` takes them.
        args: The positional arguments, with a `Leaf` in the place of each tensor, and an `OwnValue`.
        kwargs: The keyword arguments.
    """

    def __init__(self, leaves: Sequence[Leaf], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.leaves = leaves
        self._args, self._kwargs = args, kwargs

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments without tensors: by keyword, or by their number as text."""
        found = {str(index): value for index, value in enumerate(self._args)}
        found.update(self._kwargs)
        return {key: _shown(value) for key, value in found.items() if not isinstance(value, Leaf)}

    def bound(self, tensors: Sequence[Any], plain_value: PlainValue) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the keyword arguments, with `tensors` in the places of the leaves."""
        return self._filled(lambda node: tensors[node.number] if isinstance(node, Leaf) else plain_value(node.entry))

    def as_given(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the keyword arguments, with the framework's own values of the call that is being made."""
        return self._filled(lambda node: tensors[node.number] if isinstance(node, Leaf) else node.value)

    def _filled(self, fill: Callable[[_Node], Any]) -> tuple[list[Any], dict[str, Any]]:
        return [_filled(each, fill) for each in self._args], {
            key: _filled(each, fill) for key, each in self._kwargs.items()
        }


_Node = Union[Leaf, OwnValue]


def same_container(like: Any, items: list[Any]) -> Any:
    """A list, tuple or named tuple of `items`, as `like` is one."""
    if isinstance(like, list):
        return items
    return type(like)._make(items) if hasattr(like, "_make") else tuple(items)


def _filled(value: Any, fill: Callable[[_Node], Any]) -> Any:
    if isinstance(value, (Leaf, OwnValue)):
        return fill(value)
    if isinstance(value, (list, tuple)):
        return same_container(value, [_filled(each, fill) for each in value])
    if isinstance(value, dict):
        return {key: _filled(each, fill) for key, each in value.items()}
    if isinstance(value, slice):
        return slice(*(_filled(each, fill) for each in (value.start, value.stop, value.step)))
    return value


def _shown(value: Any) -> Any:
    if isinstance(value, OwnValue):
        return value.entry.get("value", value.entry.get("format"))
    if isinstance(value, (list, tuple)):
        return [_shown(each) for each in value]
    return None if isinstance(value, Leaf) else value


# --- those of a record


@dataclass(frozen=True)
class RecordedLeaf(Leaf):
    """One tensor of a record."""

    item: Item
    """Name, shape, statistics and file as the record has them."""
    shape: tuple[int, ...]


class RecordedArguments(Arguments):
    """The arguments of a function, as a forward record has them.

    Raises:
        Unreadable: an argument has no form from which it could be made again.
        DumpFormatError: the record is damaged.
    """

    leaves: list[RecordedLeaf]

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.leaves = []
        positional = fields.get("input_args", fields.get("input")) or []
        named = fields.get("input_kwargs") or {}
        if not isinstance(positional, list) or not isinstance(named, dict):
            raise Unreadable("its arguments are neither a list nor a mapping")
        # Those of keyword arguments are the last leaves.
        args = [self._read(f"{name}.{INPUT}.{i}", each) for i, each in enumerate(positional)]
        kwargs = {key: self._read(f"{name}.{INPUT}.{key}", each) for key, each in named.items()}
        if name.split(".")[1] in _WITH_INDEX and len(args) > 1 and isinstance(args[1], list):
            args[1] = _index(args[1])
        super().__init__(self.leaves, args, kwargs)

    def with_leaves(self, leaves: Sequence[RecordedLeaf]) -> RecordedArguments:
        """The arguments with other tensors, one for each leaf."""
        found = copy.copy(self)
        found.leaves = [
            replace(mine, item=each.item, dtype=each.dtype, shape=each.shape) for mine, each in zip(self.leaves, leaves)
        ]
        return found

    def _read(self, name: str, entry: Any) -> Any:
        if entry is None:
            return None
        if isinstance(entry, list):
            return [self._read(f"{name}.{i}", each) for i, each in enumerate(entry)]
        if not isinstance(entry, dict):
            raise Unreadable(f"{name} is {entry!r}, which is not an entry")
        kind = entry.get("type")
        if not isinstance(kind, str):
            return {key: self._read(f"{name}.{key}", each) for key, each in entry.items()}
        if "dtype" in entry and "shape" in entry:
            return self._leaf(name, entry)
        return _argument(name, kind, entry)

    def _leaf(self, name: str, entry: Mapping[str, Any]) -> RecordedLeaf:
        found: list[Item] = []
        add(found, name, INPUT, entry, 0)
        item = found[0]
        shape = as_shape(entry["shape"])
        if shape is None or item.dtype is None:
            raise Unreadable(f"{name} has no shape")
        if any(size < 0 for size in shape):
            raise Unreadable(f"{name} has the shape {list(shape)}, in which a size is negative")
        dtype = plain_name(item.dtype)
        # Records of MindSpore do not say for which inputs a gradient was asked.
        is_differentiated = item.requires_grad is not False and rounds(dtype)
        leaf = RecordedLeaf(len(self.leaves), dtype, is_differentiated, item, shape)
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


def _argument(name: str, kind: str, entry: Mapping[str, Any]) -> Any:
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
    return OwnValue(entry)
