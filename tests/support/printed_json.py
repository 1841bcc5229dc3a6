"""Holds what ``--json`` prints to ``docs/reference/json.schema.json``, and to no more keys than it has."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "json.schema.json"


@cache
def _closed() -> dict[str, Any]:
    """The schema, in which no object has a key that is not listed."""
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for definition in found["$defs"].values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    return found


def hold_to_schema(printed: Any, command: str) -> None:
    """Compare what a command printed with the definitions of it.

    Args:
        printed: The value of its standard output.
        command: Its name, and the flag with which the schema has a definition of its own.

    Raises:
        AssertionError: no definition fits; the message has the closest errors.
    """
    jsonschema = pytest.importorskip("jsonschema")
    schema = _closed()
    is_trouble = isinstance(printed, dict) and printed.get("status", 0) > 1 and len(printed) == 4
    title = "trouble" if is_trouble else command
    (definition,) = [each for each in schema["anyOf"] if each["title"] == title]
    validator = jsonschema.Draft202012Validator({**definition, "$defs": schema["$defs"]})
    errors = [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(printed)]
    assert not errors, f"{title}: {errors[:5]}"
