"""Values as the text of dump.json, in the form that the real tool writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from probe.common.dump.journal import NOT_FINITE

quote = json.encoder.encode_basestring_ascii
_float = float.__repr__
_TENSOR_KEYS = ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad")
_SIZES = {int, type(None)}
_SCALARS = {bool, int, float, str, type(None)}
_compact = msgspec.json.encode
_indented = msgspec.json.format
_packed = msgspec.msgpack.encode


def _quote(text: Any) -> str:
    """`text` as JSON; what a corrupted journal has in the place of a text becomes one."""
    return quote(text if type(text) is str else str(text))


class JsonText:
    """Writes values as ``json.dumps(value, indent=1)`` would at some depth. That encoder is not compiled.

    Most of a dump are tensors that differ in their statistics alone, so what surrounds these is made once.
    """

    def __init__(self) -> None:
        self._around: dict[tuple[Any, ...], str] = {}

    def __call__(self, value: Any, indent: int) -> str:
        kind = type(value)
        if kind is dict:
            if not value:
                return "{}"
            if len(value) >= 8 and tuple(value)[:8] == _TENSOR_KEYS and _is_tensor(*tuple(value.values())[:8]):
                return self._tensor(value, indent)
        elif kind is not list and kind is not tuple:
            return _scalar(value)
        elif not value:
            return "[]"
        # Loops, not comprehensions: one frame a level lets deep values fit into Python's limit.
        inner = indent + 1
        margin = "\n" + " " * inner
        parts = []
        if kind is dict:
            for key, item in value.items():
                parts.append(f"{margin}{_quote(key)}: {self(item, inner)}")
            return "{" + ",".join(parts) + "\n" + " " * indent + "}"
        for item in value:
            parts.append(margin + self(item, inner))
        return "[" + ",".join(parts) + "\n" + " " * indent + "]"

    def encoded(self, value: Any, indent: int) -> bytes:
        """The same text by compiled code where that can write it, in a tenth of the time.

        A number then has its exponent as 1e-7 and not as 1e-07.
        """
        text = _compiled(value, indent)
        return self(value, indent).encode() if text is None else text

    def members(self, values: dict[str, Any], indent: int, odd: Sequence[str] = ()) -> bytes:
        """What `encoded` has between the braces of a dict that is not empty; but for `odd`, all numbers are finite."""
        margin = b"\n" + b" " * (indent + 1)
        text = _compiled({**values, **dict.fromkeys(odd)}, indent, finite=True)
        if text is None:
            # One of them keeps the others from being encoded together.
            return b",".join(
                margin + _quote(name).encode() + b": " + self.encoded(value, indent + 1)
                for name, value in values.items()
            )
        text = text[1 : -len(b"\n}") - indent]
        for name in odd:
            # Nothing else begins a line like this: what is inside a value stands further to the right.
            before = margin + _quote(name).encode() + b": "
            text = text.replace(before + b"null", before + self.encoded(values[name], indent + 1), 1)
        return text

    def _tensor(self, entry: dict[str, Any], indent: int) -> str:
        type_name, dtype, shape, largest, smallest, mean, norm, requires_grad, *more = entry.values()
        key = (type_name, dtype, tuple(shape), requires_grad, indent)
        around = self._around.get(key)
        if around is None:
            around = self._around[key] = self._frame(type_name, dtype, shape, requires_grad, indent)
        text = around % (_scalar(largest), _scalar(smallest), _scalar(mean), _scalar(norm))
        if more:
            margin = ",\n" + " " * (indent + 1)
            for name, value in zip(list(entry)[8:], more):
                text += f"{margin}{_quote(name)}: {self(value, indent + 1)}"
        return text + "\n" + " " * indent + "}"

    def _frame(self, type_name: str, dtype: str, shape: list[Any], requires_grad: bool, indent: int) -> str:
        margin = ",\n" + " " * (indent + 1)
        fixed = f'"type": {_quote(type_name)}{margin}"dtype": {_quote(dtype)}{margin}"shape": {self(shape, indent + 1)}'
        statistics = margin.join(f'"{key}": %s' for key in ("Max", "Min", "Mean", "Norm"))
        last = f'"requires_grad": {_scalar(requires_grad)}'
        return "{" + margin[1:] + fixed.replace("%", "%%") + margin + statistics + margin + last


def _is_tensor(
    name: Any, dtype: Any, shape: Any, largest: Any, smallest: Any, mean: Any, norm: Any, requires_grad: Any
) -> bool:
    """Whether these are of the types that the entry of a tensor has; others can be equal to them, as 1 is to True."""
    if type(name) is not str or type(dtype) is not str or type(shape) is not list or type(requires_grad) is not bool:
        return False
    return _SIZES.issuperset(map(type, shape)) and _SCALARS.issuperset(map(type, (largest, smallest, mean, norm)))


def _compiled(value: Any, indent: int, finite: bool = False) -> bytes | None:
    """The text of `value` by compiled code; ``None`` where that would write another one, or none.

    `finite`: all numbers in it are known to be.
    """
    try:
        text = _compact(value)
        # What is not finite is null now, and what `json` escapes besides control characters is not escaped.
        alike = text.isascii() and b"\x7f" not in text
        if alike and (finite or not (b"null" in text and NOT_FINITE.search(_packed(value)))):
            # Lists around it indent it. The n-th opens with a bracket, a line end and n blanks, and closes the other
            # way round with n - 1.
            laid_out = _indented(b"[" * indent + text + b"]" * indent, indent=1)
            before, after = sum(range(3, 3 + indent)), sum(range(2, 2 + indent))
            return laid_out[before : len(laid_out) - after]
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass  # a value only the slow way can write, or none of them, and then that says so
    return None


def _scalar(value: Any) -> str:
    kind = type(value)
    if kind is float:
        return _number(value)
    if kind is str:
        return _quote(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    try:
        return str(value)
    except ValueError:
        # An integer of more digits than Python converts; JSON has no hexadecimal.
        return _quote(hex(value))


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (_INFINITY, -_INFINITY):
        return "Infinity" if value > 0 else "-Infinity"
    return _float(value)
_INFINITY = float("inf")
