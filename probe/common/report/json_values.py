"""Values of results as JSON has them, and back: JSON lacks complex numbers, infinities and NaN."""

from __future__ import annotations

import math
from typing import Any

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> Any:
    """Return a value in those of JSON; a number that JSON lacks is ``{"number": "NaN"}``."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, complex):
        return {"number": [to_json(value.real), to_json(value.imag)]}
    if isinstance(value, dict):
        return {key: to_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(each) for each in value]
    return value


def from_json(value: Any) -> Any:
    """Return what `to_json` made this of, with lists for tuples."""
    if isinstance(value, dict):
        if set(value) == {"number"}:
            number = value["number"]
            if isinstance(number, list):
                return complex(from_json(number[0]), from_json(number[1]))
            return _WORDS[number]
        return {key: from_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [from_json(each) for each in value]
    return value
