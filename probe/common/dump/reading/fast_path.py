"""The fast path to the items of a record: lists of tensors and plain values, decoded without dictionaries.

Nearly all records have this form, and it takes half the time of `flattening`, which knows every form and gives the
same items.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from sys import intern
from typing import Any, Optional, Union

import msgspec

from probe.common.dump import naming
from probe.common.dump.json_decode import number
from probe.common.dump.reading import flattening
from probe.common.dump.reading.items import INPUT, OUTPUT, PARAMETERS, PARAMETERS_GRAD, Item, Shape

_NOT_JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Their values stand under keys of their own.
_SPECIAL = frozenset(("torch.distributed.P2POp", "torch.ProcessGroup"))


# A text is a number that JSON does not have.
_Number = Union[bool, int, float, str, None]


class _Leaf(msgspec.Struct, gc=False):
    """One tensor or plain value; keys are those of the file."""

    type: str
    dtype: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    shape: tuple[int, ...] = ()
    Max: _Number = None
    Min: _Number = None
    Mean: _Number = None
    Norm: _Number = None
    requires_grad: Optional[bool] = None  # noqa: UP045
    md5: Optional[str] = None  # noqa: UP045
    data_name: Optional[str] = None  # noqa: UP045
    nonfinite: Optional[int] = msgspec.field(default=None, name="Nonfinite")  # noqa: UP045
    finite_max: Union[int, float, None] = msgspec.field(default=None, name="Finite Max")  # noqa: UP007
    finite_min: Union[int, float, None] = msgspec.field(default=None, name="Finite Min")  # noqa: UP007
    value: Any = msgspec.UNSET
    format: Any = None


_Nested = Union[_Leaf, list[Any], None]
_Value = Union[_Leaf, list[_Nested], None]


class _CallFields(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A call; the order is that of its items. Of other fields none is an item."""

    input_args: list[_Value] = []
    input: list[_Value] = []
    input_kwargs: dict[str, _Value] = {}
    parameters: dict[str, _Value] = {}
    output: list[_Value] = []
    function: Any = None
    attributes: Any = None
    waited_after: Any = None


class _OtherForm(Exception):
    """The record is not of the form that the fast path knows."""


_call = msgspec.json.Decoder(_CallFields).decode
_gradients = msgspec.json.Decoder(dict[str, list[_Value]]).decode


def items(name: str, raw: msgspec.Raw) -> list[Item] | None:
    """The items of `flattening.flatten` for the fields in `raw`; ``None`` if the record is of another form."""
    found: list[Item] = []
    try:
        if naming.is_gradients(name):
            for parameter, entries in _gradients(raw).items():
                for entry in entries:
                    _add(found, f"{name}.", PARAMETERS_GRAD, ((parameter, entry),), 0)
            return found
        if naming.is_debug(name):
            return None
        call = _call(raw)
        if call.input_args:
            _add(found, f"{name}.input.", INPUT, enumerate(call.input_args), 1)
        if call.input:
            _add(found, f"{name}.input.", INPUT, enumerate(call.input), 1)
        if call.input_kwargs:
            _add(found, f"{name}.input.", INPUT, call.input_kwargs.items(), 1)
        if call.parameters:
            _add(found, f"{name}.parameters.", PARAMETERS, call.parameters.items(), 1)
        if call.output:
            _add(found, f"{name}.output.", OUTPUT, enumerate(call.output), 1)
    except (*_NOT_JSON_ERRORS, _OtherForm):
        return None
    return found


def _add(found: list[Item], above: str, state: str, entries: Iterable[tuple[Any, _Value]], depth: int) -> None:
    for key, entry in entries:
        name = f"{above}{key}"
        if type(entry) is list and depth <= 1:
            _add(found, f"{name}.", state, enumerate(entry), depth + 1)
        elif type(entry) is not _Leaf:
            flattening.add(found, name, state, entry, depth)
        elif entry.dtype is None:
            if entry.type in _SPECIAL:
                raise _OtherForm
            value = entry.format if entry.value is msgspec.UNSET else entry.value
            found.append(flattening.plain(name, state, entry.type, value))
        else:
            largest, smallest, mean, norm = entry.Max, entry.Min, entry.Mean, entry.Norm
            if type(largest) is str or type(smallest) is str or type(mean) is str or type(norm) is str:
                largest, smallest, mean, norm = map(number, (largest, smallest, mean, norm))
            dtype, shape = intern(entry.dtype), _shared(entry.shape)
            requires_grad, md5, data_name = entry.requires_grad, entry.md5, entry.data_name
            item = Item(name, state, dtype, shape, largest, smallest, mean, norm, requires_grad, md5, data_name)
            if entry.nonfinite is not None:
                item.nonfinite, item.finite_max, item.finite_min = entry.nonfinite, entry.finite_max, entry.finite_min
            found.append(item)


@lru_cache(maxsize=4096)
def _shared(shape: Shape) -> Shape:
    """The one of all equal shapes that items have: those of a dump are few."""
    return shape
