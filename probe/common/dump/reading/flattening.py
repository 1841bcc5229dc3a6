"""The items of a record, from its fields as JSON gives them: whatever form they have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from probe.common.dump import naming
from probe.common.dump.json_decode import number
from probe.common.dump.reading.items import (
    DEBUG,
    INPUT,
    OUTPUT,
    PARAMETERS,
    PARAMETERS_GRAD,
    Item,
    as_shape,
    plain_item,
)
from probe.common.errors import DumpFormatError

DEEPEST = 400
"""The depth to which values may be nested inside a record."""

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
_MOST_BITS = 1023
"""The largest number of a statistic: all number formats have an infinity for larger ones."""
_NONFINITE = ("Nonfinite", "Finite Max", "Finite Min")
# Whatever else a record holds under the names of its gradients.
_OWN_FIELDS = frozenset(key for key, _ in _PARTS)


def flatten(name: str, fields: Any) -> list[Item]:
    """The items of the record `name` in the order of the tables: inputs, parameters, outputs, gradients of parameters.

    Raises:
        DumpFormatError: the record is damaged; the message names it and the place in it.
    """
    found: list[Item] = []
    if naming.is_gradients(name):
        for parameter, value in _mapping(name, fields).items():
            # The one gradient of a parameter stands in a list of its own.
            for entry in value if isinstance(value, list) else [value]:
                add(found, f"{name}.{parameter}", PARAMETERS_GRAD, entry, 0)
    elif naming.is_debug(name):
        add(found, name, DEBUG, fields, 0)
    else:
        for key, state in _PARTS:
            value = _mapping(name, fields).get(key)
            if value is not None:
                add(found, f"{name}.{state}", state, value, 0)
        for key in fields:
            if key not in _OWN_FIELDS and naming.is_gradients(key):
                add(found, f"{name}.{key}", PARAMETERS_GRAD, fields[key], 0)
    return found


def _mapping(name: str, fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise DumpFormatError(f"{name}: a record is an object, not {_kind(fields)}.")
    return fields


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")


def add(found: list[Item], name: str, state: str, value: Any, depth: int) -> None:
    """Append the items of `value`, which stands `depth` levels below its record under `name`.

    Raises:
        DumpFormatError: something stands there that cannot.
    """
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
        raise DumpFormatError(f"{name}: {_kind(value)} ({value!r}); allowed: an object, a list or null.")
    if depth > DEEPEST:
        raise DumpFormatError(f"{name}: nested deeper than {DEEPEST} levels.")
    for key, child in children:
        add(found, f"{name}.{key}", state, child, depth + 1)


def _leaf(name: str, state: str, type_name: str, entry: dict[str, Any]) -> Item:
    dtype = entry.get("dtype")
    if type(dtype) is str:
        return _tensor(name, state, dtype, entry)
    if type_name == "torch.distributed.P2POp":
        tensor = entry.get("tensor")
        # Of a receive nothing is known before the call.
        item = _leaf(name, state, "torch.Tensor", tensor) if isinstance(tensor, dict) else Item(name, state)
        item.peer = tuple(entry.get(key) for key in ("op", "peer", "tag", "group_id"))
        return item
    if type_name == "torch.ProcessGroup":
        ranks = str(entry.get("group_ranks"))
        return plain_item(name, state, type_name, (), ranks, ranks)
    return plain(name, state, type_name, entry.get("value", entry.get("format")))


def plain(name: str, state: str, type_name: str, value: Any) -> Item:
    """The item of a plain value of the type `type_name`."""
    value = number(value)
    if name.rpartition(".")[2] in _RANKS:
        return plain_item(name, state, type_name, (), str(value), str(value))
    if type_name == "torch.Size":
        return plain_item(name, state, type_name, as_shape(value), None, value)
    if type_name == "slice":
        return plain_item(name, state, type_name, (len(value) if isinstance(value, list) else 0,), None, value)
    if type_name == "ellipsis":
        return plain_item(name, state, type_name, (), value, value)
    return plain_item(name, state, str(type(value)), (), value, value)


def _tensor(name: str, state: str, dtype: str, entry: dict[str, Any]) -> Item:
    get = entry.get
    shape = as_shape(get("shape", []))
    if shape is None:
        raise DumpFormatError(f'{name}: "shape" is {get("shape")!r}, not a list of whole numbers below 2**63.')
    md5, data_name = get("md5"), get("data_name")
    if md5 is not None and type(md5) is not str:
        # The exclusive or of a single number is that number in the dumps of msProbe 26.2.
        if isinstance(md5, (dict, list)):
            raise DumpFormatError(f'{name}: "md5" is {md5!r}, not a text.')
        md5 = str(md5)
    if data_name is not None and type(data_name) is not str:
        raise DumpFormatError(f'{name}: "data_name" is {data_name!r}, not a text.')
    requires_grad: Any = get("requires_grad")
    if requires_grad is not None and type(requires_grad) is not bool:
        requires_grad = str(requires_grad)
    largest, smallest, mean, norm = map(number, (get("Max"), get("Min"), get("Mean"), get("Norm")))
    for key, value in (("Max", largest), ("Min", smallest), ("Mean", mean), ("Norm", norm)):
        if isinstance(value, (list, dict)):
            raise DumpFormatError(f'{name}: "{key}" is {value!r}, not a number.')
        if type(value) is int and value.bit_length() > _MOST_BITS:
            bits = f"{value.bit_length()} bits; allowed: {_MOST_BITS}"
            raise DumpFormatError(f'{name}: "{key}" is a whole number of {bits}.')
    item = Item(name, state, dtype, shape, largest, smallest, mean, norm, requires_grad, md5, data_name)
    if "Nonfinite" in entry:
        _add_nonfinite(item, entry)
    return item


def _add_nonfinite(item: Item, entry: dict[str, Any]) -> None:
    count, largest, smallest = (entry.get(key) for key in _NONFINITE)
    if type(count) is float and count.is_integer():
        count = int(count)
    if count is not None and type(count) is not int:
        raise DumpFormatError(f'{item.name}: "Nonfinite" is {count!r}, not a whole number.')
    for key, value in zip(_NONFINITE[1:], (largest, smallest)):
        if value is not None and type(value) not in (int, float):
            raise DumpFormatError(f'{item.name}: "{key}" is {value!r}, not a number.')
    if count is not None:
        item.nonfinite, item.finite_max, item.finite_min = count, largest, smallest
