"""Values as Python writes them.

They come from dumps, which anybody may have written: whatever they are, the text stands for that value, and is no code.
"""

from __future__ import annotations

import cmath
import keyword
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from probe.common.errors import MsprobeException

WIDTH = 112
"""The width of a line, before it is indented."""
_BLANK = "\0"


class Unwritable(MsprobeException):
    """A value that has no form in Python's text."""


@dataclass(frozen=True)
class Code:
    """The text that stands for itself, such as the name of a variable."""

    text: str


def source(value: Any) -> str:
    """`value` as an expression: containers, `Code`, and plain values of Python.

    Raises:
        Unwritable: it is of another type, whose own representation nobody here knows.
    """
    if isinstance(value, Code):
        return value.text
    # The types themselves: one derived from them represents itself as it likes.
    write = _WRITERS.get(type(value))
    if write is None:
        raise Unwritable(f"a value of type {type(value).__name__} cannot be written in Python")
    return write(value)


def _sequence(values: Sequence[Any]) -> str:
    return ", ".join(map(source, values))


def _dict(value: Mapping[Any, Any]) -> str:
    return "{" + ", ".join(f"{source(key)}: {source(each)}" for key, each in value.items()) + "}"


def _float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _complex(value: complex) -> str:
    return repr(value) if cmath.isfinite(value) else f"complex({_float(value.real)}, {_float(value.imag)})"


def _str(value: str) -> str:
    # Always within double quotes, so that `wrapped` sees where a text begins and ends.
    return '"' + "".join('\\"' if each == '"' else repr(each)[1:-1] for each in value) + '"'


_WRITERS: dict[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: repr,
    float: _float,
    complex: _complex,
    str: _str,
    list: lambda value: f"[{_sequence(value)}]",
    tuple: lambda value: f"({_sequence(value)}{',' if len(value) == 1 else ''})",
    dict: _dict,
    slice: lambda value: f"slice({_sequence((value.start, value.stop, value.step))})",
    type(Ellipsis): lambda value: "...",
}


def docstring(text: str) -> str:
    """One line of text as it is written between the quotes of a docstring."""
    printable = "".join(each if each.isprintable() and each != "\\" else repr(each)[1:-1] for each in text)
    return printable.replace('"""', '\\"\\"\\"')


def numbers(values: NDArray[Any]) -> str:
    """`values` as nested lists, each with the fewest digits that give it back in its type."""
    if values.ndim:
        return f"[{', '.join(map(numbers, values))}]"
    value = values[()]
    if values.dtype.kind == "f":
        return str(value) if np.isfinite(value) else f'float("{value}")'
    return repr(value.item())


def call(function: str, args: Sequence[Any], kwargs: Mapping[str, Any], before: str) -> str:
    """A statement that begins with `before` and calls `function`, over several lines if one is too short."""
    given = arguments(args, kwargs)
    line = f"{before}{function}({', '.join(given)})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{before}{function}(", *(wrapped(f"{each},") for each in given), ")"])


def arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The text that stands between the brackets of a call, one text for each argument."""
    plain = {name: value for name, value in kwargs.items() if _is_name(name)}
    others = {name: value for name, value in kwargs.items() if name not in plain}
    named = [f"{name}={source(value)}" for name, value in plain.items()]
    return [*map(source, args), *named, *([f"**{source(others)}"] if others else [])]


def _is_name(text: str) -> bool:
    """True if a call can give an argument of this name: ``random_`` of PyTorch has one that is called ``from``."""
    # Python reads other letters as their nearest plain ones.
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text) and text != "__debug__"


def wrapped(text: str) -> str:
    """An expression in brackets, indented and broken into lines at its blanks; texts in it are left whole."""
    if len(text) <= WIDTH:
        return f"    {text}"
    whole = re.sub(r'"(?:[^"\\]|\\.)*"', lambda found: found[0].replace(" ", _BLANK), text)
    lines = textwrap.wrap(whole, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return "    " + "\n        ".join(lines).replace(_BLANK, " ")
