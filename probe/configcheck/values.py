"""Equality of values that were written as different types: ``1e-4`` and ``0.0001``, ``True`` and ``"true"``."""

from __future__ import annotations

import ast
import re
from typing import Any

from probe.configcheck.tables import DTYPES

_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_NOTHING = ("none", "null", "~", "")
_LONGEST = 2000


def plain_value(value: Any) -> Any:
    """A value as a number, a truth value, ``None``, a list of these, or a text in which case and dtype are normal.

    Example:
        >>> plain_value("1e-5"), plain_value("True"), plain_value("torch.bfloat16"), plain_value("[1, 2.0]")
        (1e-05, True, 'bfloat16', [1.0, 2.0])
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1 << 53 else value
    if isinstance(value, (list, tuple)):
        return [plain_value(each) for each in value]
    return _of_text(str(value).strip())


def _of_text(text: str) -> Any:
    lower = text.lower()
    if lower in _TRUE or lower in _FALSE:
        return lower in _TRUE
    if lower in _NOTHING:
        return None
    try:
        number = float(text) if len(text) < 100 else None
    except ValueError:
        number = None
    if number is not None:
        return number if abs(number) < 1 << 53 else text
    if text[0] in "[(" and len(text) < _LONGEST:
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return text
        return plain_value(found)
    dtype = re.sub(r"[-_]", "", lower.removeprefix("torch.").removeprefix("mindspore."))
    return DTYPES.get(dtype, text)


def are_equal(one: Any, other: Any) -> bool:
    """True if two values are the same, whatever they were written as; a flag is 1 as well."""
    mine, theirs = plain_value(one), plain_value(other)
    if (
        isinstance(mine, bool) != isinstance(theirs, bool)
        and isinstance(mine, (bool, float))
        and isinstance(theirs, (bool, float))
    ):
        return float(mine) == float(theirs)
    return bool(mine == theirs)
