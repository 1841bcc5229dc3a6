"""The text of a value that a file or a user gave, for a message."""

from __future__ import annotations

import json

_SHOWN_CHARACTERS = 80
"""Characters of a value in a message; a guess."""


def show(value: object) -> str:
    """`value` as it is written in JSON, cut when it is long; of a container only its kind.

    Example:
        >>> show("L3"), show([1, 2])
        ('"L3"', 'a list of 2')
    """
    if isinstance(value, str):
        # A lone surrogate is legal in JSON text and cannot be printed.
        value = value[: _SHOWN_CHARACTERS + 1].encode("utf-8", "backslashreplace").decode()
        if len(value) > _SHOWN_CHARACTERS:
            value = value[:_SHOWN_CHARACTERS] + "..."
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and abs(value) >= 10**_SHOWN_CHARACTERS:
        return "a very large number"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else f"of type {type(value).__name__}"
