"""An item: one tensor or plain value of one call, named as its file would be.

``<record>.input.0``, ``<record>.input.dim``, ``<record>.output.1.hidden``, ``<record>.parameters.weight``. What has no
form in a dump is an item without data, so that positions keep their meaning; an empty list or dictionary is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional

import msgspec

from probe.common.dump import naming
from probe.common.dump.json_decode import number
from probe.common.errors import DumpFormatError

if TYPE_CHECKING:
    from probe.common.dump.choices import Choices
    from probe.common.numerics.sketch import Sketch

Shape = tuple[int, ...]

INPUT, OUTPUT, PARAMETERS, PARAMETERS_GRAD, DEBUG = "input", "output", "parameters", "parameters_grad", "debug"


_MOST = 1 << 63
"""No tensor has so many elements, or such a size."""


class Item(msgspec.Struct, gc=False):
    """One tensor or value. A field is ``None`` where the dump says nothing."""

    name: str
    state: str
    """The part of the call: ``input``, ``output``, ``parameters``, ``parameters_grad``, ``debug``."""
    dtype: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """``torch.float32``, ``Float32``; of a plain value its class: ``<class 'int'>``."""
    shape: Optional[Shape] = None  # noqa: UP045
    """``(2, 3)``; of a plain value ``()``."""
    max: Any = None
    """The largest value, as min, mean and norm a number, or the text of a plain value."""
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
    nonfinite: Optional[int] = None  # noqa: UP045
    """The number of elements that are NaN or infinite, where the dump counted them and there are some."""
    finite_max: Optional[float] = None  # noqa: UP045
    """The greatest finite element of such a tensor; ``None`` where there is none."""
    finite_min: Optional[float] = None  # noqa: UP045
    table: Any = None
    """The `SketchTable` of the dump, which sketch and maker are asked of."""

    @property
    def sketch(self) -> Sketch | None:
        """The sketch of the tensor; ``None`` where the dump has none."""
        found: Sketch | None = None if self.table is None else self.table.sketch(self.name)
        return found

    @property
    def excluded(self) -> int:
        """The number of elements that are NaN, infinite or of 2^100 and more; 0 also where nobody has counted them."""
        return self.nonfinite or (0 if self.table is None else self.table.excluded(self.name))

    @property
    def choices(self) -> Choices | None:
        """The choices that a tensor of indices is, see `probe.common.dump.choices`; ``None`` of any other tensor."""
        found: Choices | None = None if self.table is None else self.table.choices(self.name)
        return found

    @property
    def made_by(self) -> str | None:
        """The item that returned this tensor, a parameter, a buffer, or data; ``None`` where that is not known."""
        found: str | None = None if self.table is None else self.table.made_by(self.name)
        return found

    @property
    def is_tensor(self) -> bool:
        return self.dtype is not None and self.value is None

    @property
    def has_nan(self) -> bool:
        """True if a NaN is in the tensor, as far as its statistics tell."""
        if not self.is_tensor:
            return False
        if is_nan(self.max) or is_nan(self.min):
            return True
        # Of an infinity beside a negative one the mean is a NaN that is not in the tensor. Where Max and Min of a
        # device leave NaN out, the count still has it.
        return (is_nan(self.mean) or bool(self.nonfinite)) and not self.has_inf

    @property
    def has_inf(self) -> bool:
        """True if an infinity is in the tensor; a norm alone can be one because its type ends before it."""
        return self.is_tensor and (is_inf(self.max) or is_inf(self.min))


def plain_item(name: str, state: str, dtype: str, shape: Shape | None, statistic: Any, value: Any) -> Item:
    """The item of a plain value: all four statistics are the same."""
    return Item(name, state, dtype, shape, statistic, statistic, statistic, statistic, None, None, None, value)


def is_nan(value: Any) -> bool:
    """True if a statistic is NaN."""
    return type(value) is float and value != value


def is_inf(value: Any) -> bool:
    """True if a statistic is an infinity."""
    return type(value) is float and math.isinf(value)


def as_shape(value: Any) -> Shape | None:
    """The shape that a list of JSON stands for; ``None`` where it stands for none."""
    if type(value) is not list or not all(type(size) is int for size in value):
        return None
    return tuple(value) if -_MOST < math.prod(value) < _MOST and all(-_MOST < size < _MOST for size in value) else None


@lru_cache(maxsize=4096)
def shape_text(shape: Shape) -> str:
    """A shape as dumps, tables and messages write it.

    Example:
        >>> shape_text((2, 3))
        '[2, 3]'
    """
    return str(list(shape))


# --- flattening


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
