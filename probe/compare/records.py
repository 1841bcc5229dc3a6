"""What a dump holds: records, and the items a record is flattened into.

An item is one tensor or plain value of one call, named as its file would be: ``<record>.input.0``,
``<record>.input.dim``, ``<record>.output.1.hidden``, ``<record>.parameters.weight``. What has no form in a dump is an
item without data, so that positions keep their meaning; an empty list or dictionary is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Optional

import msgspec

from probe.common.errors import DumpFormatError
from probe.common.naming import ParsedName, parse
from probe.compare.json_text import number

INPUT, OUTPUT, PARAMETERS, PARAMETERS_GRAD, DEBUG = "input", "output", "parameters", "parameters_grad", "debug"

DEEPEST = 400
"""How deep values may be nested inside a record."""

_GRADIENTS = re.compile(r"parameters_grad(\.[0-9]+)?\Z")
# Arguments that are numbers of ranks; a dump shows them as text.
_RANKS = frozenset(("src", "dst", "group_src", "group_dst"))
# The keys of a record in the order in which its items are listed. `input_args` of a forward call and `input` of a
# backward pass are the same thing, and older files have the one where newer ones have the other.
_PARTS = (
    ("input_args", INPUT),
    ("input", INPUT),
    ("input_kwargs", INPUT),
    ("parameters", PARAMETERS),
    ("output", OUTPUT),
)
# Whatever else a record holds under the names of its gradients.
_OWN_FIELDS = frozenset(key for key, _ in _PARTS)


class Item(msgspec.Struct, gc=False):
    """One tensor or value. A field is ``None`` where the dump says nothing."""

    name: str
    state: str
    """One of ``input``, ``output``, ``parameters``, ``parameters_grad``, ``debug``."""
    dtype: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """``torch.float32``, ``Float32``; of a plain value its class: ``<class 'int'>``."""
    shape: Optional[str] = None  # noqa: UP045
    """As a list is written: ``[2, 3]``."""
    max: Any = None
    """Like min, mean and norm: a number, or the text of a plain value."""
    min: Any = None
    mean: Any = None
    norm: Any = None
    requires_grad: Optional[bool] = None  # noqa: UP045
    md5: Optional[str] = None  # noqa: UP045
    data_name: Optional[str] = None  # noqa: UP045
    """The tensor's file in the data folder."""
    value: Any = None
    """A plain value itself; ``None`` of a tensor."""
    peer: Optional[tuple[Any, ...]] = None  # noqa: UP045
    """Operation, peer, tag and group of a point-to-point operation."""

    @property
    def is_tensor(self) -> bool:
        return self.dtype is not None and self.value is None


class Record:
    """One call, or one saved value; its items are made when they are asked for."""

    __slots__ = ("_fields", "name")

    def __init__(self, name: str, fields: Callable[[], Any]) -> None:
        self.name = name
        self._fields = fields

    def __repr__(self) -> str:
        return f"Record({self.name!r})"

    @property
    def fields(self) -> Any:
        """The record as it stands in the file."""
        return self._fields()

    @property
    def parsed(self) -> ParsedName | None:
        """Base, number and direction; ``None`` for a saved value and for a name of no known form."""
        return parse(self.name)

    def items(self) -> list[Item]:
        """The items in the order of the tables: inputs, parameters, outputs, gradients of parameters.

        Raises:
            DumpFormatError: the record is damaged; the message names it and the place in it.
        """
        found: list[Item] = []
        fields = self._fields()
        name = self.name
        if _GRADIENTS.search(name):
            for parameter, value in _mapping(name, fields).items():
                # The one gradient of a parameter stands in a list of its own.
                for entry in value if isinstance(value, list) else [value]:
                    _add(found, f"{name}.{parameter}", PARAMETERS_GRAD, entry, 0)
        elif name.endswith(".debug"):
            _add(found, name, DEBUG, fields, 0)
        else:
            for key, state in _PARTS:
                value = _mapping(name, fields).get(key)
                if value is not None:
                    _add(found, f"{name}.{state}", state, value, 0)
            for key in fields.keys() - _OWN_FIELDS:
                if _GRADIENTS.search(key):
                    _add(found, f"{name}.{key}", PARAMETERS_GRAD, fields[key], 0)
        return found


def _mapping(name: str, fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise DumpFormatError(f"{name}: a record is an object, not {_kind(fields)}.")
    return fields


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")


def _add(found: list[Item], name: str, state: str, value: Any, depth: int) -> None:
    kind = type(value)
    if kind is dict:
        type_name = value.get("type")
        if type(type_name) is str:
            found.append(_leaf(name, state, type_name, value))
            return
        children: Iterator[tuple[Any, Any]] = iter(value.items())
    elif kind is list:
        children = enumerate(value)
    elif value is None:
        found.append(Item(name, state))
        return
    else:
        raise DumpFormatError(f"{name}: {_kind(value)} ({value!r}) stands where an object, a list or null may.")
    if depth > DEEPEST:
        raise DumpFormatError(f"{name}: nested deeper than {DEEPEST} levels.")
    for key, child in children:
        _add(found, f"{name}.{key}", state, child, depth + 1)


def _leaf(name: str, state: str, type_name: str, entry: dict[str, Any]) -> Item:
    dtype = entry.get("dtype")
    if type(dtype) is str:
        return _tensor(name, state, dtype, entry)
    if type_name == "torch.distributed.P2POp" and isinstance(entry.get("tensor"), dict):
        item = _leaf(name, state, "torch.Tensor", entry["tensor"])
        item.peer = tuple(entry.get(key) for key in ("op", "peer", "tag", "group_id"))
        return item
    if type_name == "torch.ProcessGroup":
        ranks = str(entry.get("group_ranks"))
        return _plain(name, state, type_name, "[]", ranks, ranks)
    value = number(entry.get("value", entry.get("format")))
    if name.rpartition(".")[2] in _RANKS:
        return _plain(name, state, type_name, "[]", str(value), str(value))
    if type_name == "torch.Size":
        return _plain(name, state, type_name, str(value), None, value)
    if type_name == "slice":
        return _plain(name, state, type_name, f"[{len(value) if isinstance(value, list) else 0}]", None, value)
    if type_name == "ellipsis":
        return _plain(name, state, type_name, "[]", value, value)
    return _plain(name, state, str(type(value)), "[]", value, value)


def _plain(name: str, state: str, dtype: str, shape: str, statistic: Any, value: Any) -> Item:
    return Item(name, state, dtype, shape, statistic, statistic, statistic, statistic, value=value)


def _tensor(name: str, state: str, dtype: str, entry: dict[str, Any]) -> Item:
    get = entry.get
    shape = get("shape", [])
    if type(shape) is not list:
        raise DumpFormatError(f"{name}: \"shape\" is {shape!r}, not a list.")
    md5, data_name = get("md5"), get("data_name")
    if md5 is not None and type(md5) is not str:
        # The exclusive or of a single number is that number in the dumps of msProbe 26.2.
        if isinstance(md5, (dict, list)):
            raise DumpFormatError(f"{name}: \"md5\" is {md5!r}, not a text.")
        md5 = str(md5)
    if data_name is not None and type(data_name) is not str:
        raise DumpFormatError(f"{name}: \"data_name\" is {data_name!r}, not a text.")
    item = Item(
        name, state, dtype, str(shape), get("Max"), get("Min"), get("Mean"), get("Norm"), get("requires_grad"),
        md5, data_name,
    )  # fmt: skip
    if type(item.max) is str or type(item.min) is str or type(item.mean) is str or type(item.norm) is str:
        item.max, item.min, item.mean, item.norm = map(number, (item.max, item.min, item.mean, item.norm))
    return item

