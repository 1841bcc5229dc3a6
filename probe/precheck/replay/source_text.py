"""Values as Python writes them."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 112
"""Of a line, before it is indented."""
_BLANK = "\0"


@dataclass(frozen=True)
class Code:
    """What stands for itself, such as the name of a variable."""

    text: str


def source(value: Any) -> str:
    """`value` as an expression: containers, `Code`, and what has no parts."""
    if isinstance(value, Code):
        return value.text
    if isinstance(value, list):
        return f"[{', '.join(map(source, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(source, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{source(key)}: {source(each)}" for key, each in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({source(value.start)}, {source(value.stop)}, {source(value.step)})"
    if value is Ellipsis:
        return "..."
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str) and not {'"', "\\"} & set(value) and value.isprintable():
        return f'"{value}"'
    return repr(value)


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
    given = [*map(source, args), *(f"{name}={source(value)}" for name, value in kwargs.items() if _is_name(name))]
    given += [f"**{source({name: value})}" for name, value in kwargs.items() if not _is_name(name)]
    line = f"{before}{function}({', '.join(given)})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{before}{function}(", *(wrapped(f"{each},") for each in given), ")"])


def _is_name(text: str) -> bool:
    """Whether Python takes it as the name of an argument; in a dump anything may stand there."""
    return text.isidentifier() and not keyword.iskeyword(text)


def in_docstring(text: str) -> str:
    """`text` as it may stand inside of a docstring: it ends nothing, and no backslash in it means anything."""
    return text.replace("\\", "\\\\").replace('"', "'")


def wrapped(text: str) -> str:
    """An expression in brackets, indented and broken into lines at its blanks; texts in it are left whole."""
    if len(text) <= WIDTH:
        return f"    {text}"
    whole = re.sub('"[^"]*"', lambda found: found[0].replace(" ", _BLANK), text)
    lines = textwrap.wrap(whole, WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    return "    " + "\n        ".join(lines).replace(_BLANK, " ")
