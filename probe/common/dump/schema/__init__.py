"""The JSON Schemas (2020-12) of the files of a dump; docs/reference/output.md says the same in prose."""

from __future__ import annotations

import json
import os
from typing import Any

VERSION = 1
"""1 (2026-11): first version; `function` of a forward record is optional. In the ``$id`` of every schema."""

NAMES = ("dump", "debug", "stack", "construct", "process")


def load(name: str) -> dict[str, Any]:
    """The schema of ``<name>.json``: one of `NAMES`.

    Raises:
        ValueError: there is no such schema.
    """
    if name not in NAMES:
        raise ValueError(f"no schema {name!r}; there are {', '.join(NAMES)}.")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.schema.json")
    with open(path, encoding="utf-8") as stream:
        schema: dict[str, Any] = json.load(stream)
    return schema
