"""A record of a dump: one call, or one saved value. It is decoded when it is looked at.

Nearly all records are lists of tensors and plain values. These are decoded without dictionaries, which takes half the
time of `items.flatten` (measured: 0.9 s instead of 2.2 s for 33,000 records); that knows every form, and gives the same
items.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from sys import intern
from typing import Any, Optional, Union

import msgspec

from probe.common.dump import naming
from probe.common.dump.json_decode import number
from probe.common.dump.naming import ParsedName, parse
from probe.common.dump.reading import items
from probe.common.dump.reading.items import DEBUG, INPUT, OUTPUT, PARAMETERS, PARAMETERS_GRAD, Item, Shape
from probe.common.dump.sketch_file import SketchTable
from probe.common.errors import DumpFormatError

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


def usual_items(name: str, raw: msgspec.Raw) -> list[Item] | None:
    """The items of `items.flatten` for the fields in `raw`; ``None`` if the record is of another form."""
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
            items.add(found, name, state, entry, depth)
        elif entry.dtype is None:
            if entry.type in _SPECIAL:
                raise _OtherForm
            value = entry.format if entry.value is msgspec.UNSET else entry.value
            found.append(items.plain(name, state, entry.type, value))
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


__all__ = ["DEBUG", "INPUT", "OUTPUT", "PARAMETERS", "PARAMETERS_GRAD", "Item", "Record"]


class Record:
    """One call, or one saved value; its items are made when they are asked for."""

    __slots__ = ("_content", "_path", "_sketches", "name")

    def __init__(
        self,
        name: str,
        content: msgspec.Raw | dict[str, Any],
        path: str,
        sketches: SketchTable | None = None,
    ) -> None:
        self.name = name
        self._content: msgspec.Raw | dict[str, Any] | None = content
        self._path = path
        self._sketches = sketches

    def __repr__(self) -> str:
        return f"Record({self.name!r})"

    @property
    def fields(self) -> Any:
        """The record as it stands in the file.

        Raises:
            DumpFormatError: the record is damaged.
        """
        if self._content is None:
            raise DumpFormatError(f"{self._path}: record {self.name} was released; read the dump again.")
        if not isinstance(self._content, msgspec.Raw):
            return self._content
        try:
            return msgspec.json.decode(self._content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DumpFormatError(f"{self._path}: record {self.name} is damaged: {error}.") from None

    @property
    def parsed(self) -> ParsedName | None:
        """Base, number and direction; ``None`` for a saved value and for a name of no known form."""
        return parse(self.name)

    @property
    def content(self) -> bytes | None:
        """The record as it stands in the file; ``None`` in a journal, which holds it in another form."""
        return bytes(self._content) if isinstance(self._content, msgspec.Raw) else None

    @property
    def may_be_nonfinite(self) -> bool:
        """True if a NaN or an infinity may be among its numbers, without decoding it."""
        if not isinstance(self._content, msgspec.Raw):
            return self._content is not None
        content = bytes(self._content)
        return b"NaN" in content or b"Infinity" in content or b'"Nonfinite"' in content

    @property
    def attributes(self) -> dict[str, Any]:
        """The arguments that a primitive was made with, as far as the dump has them.

        Raises:
            DumpFormatError: the record is damaged.
        """
        found = self.fields.get("attributes") if isinstance(self.fields, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def waited_after(self) -> str | None:
        """The record that had begun last when the result of this asynchronous call was waited for.

        ``None`` where no other one had begun, where it was not waited for at all, and of any other call.

        Raises:
            DumpFormatError: the record is damaged.
        """
        # Few calls have it, and to look for its name takes less time than to decode them.
        if isinstance(self._content, msgspec.Raw) and b'"waited_after"' not in bytes(self._content):
            return None
        found = self.fields.get("waited_after") if isinstance(self.fields, dict) else None
        return found if isinstance(found, str) else None

    @property
    def sketches(self) -> SketchTable | None:
        """The table of sketches that its items are looked up in; ``None`` without one."""
        return self._sketches

    def release(self) -> None:
        """Keep the name only."""
        self._content = None

    def has_same_text(self, other: Record) -> bool:
        """True if both stand in their files in the same words, so that their items are the same but for names."""
        return isinstance(self._content, msgspec.Raw) and self._content == other._content

    def items(self) -> list[Item]:
        """The items in the order of the tables: inputs, parameters, outputs, gradients of parameters.

        Raises:
            DumpFormatError: the record is damaged; the message names it and the place in it.
        """
        found = usual_items(self.name, self._content) if isinstance(self._content, msgspec.Raw) else None
        if found is None:
            found = items.flatten(self.name, self.fields)
        if self._sketches is not None:
            for item in found:
                item.table = self._sketches
        return found
