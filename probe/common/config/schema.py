"""A template of the configuration file, and its JSON Schema for editors, from the table of keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from probe.common.config import fields
from probe.common.config.config import KEYS, TASKS, WITHOUT_EFFECT, Config
from probe.common.config.fields import Key

_TEXT, _PATH = {"type": "string", "minLength": 1}, {"type": "string", "minLength": 1, "description": "a path"}
_TEXTS = {"type": "array", "items": _TEXT}
_NUMBERS = {
    "type": "array",
    "items": {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": fields.MAX_NUMBER},
            {"type": "string", "pattern": r"^\s*[0-9]{1,7}\s*(-\s*[0-9]{1,7}\s*)?$"},
        ]
    },
}
_SHAPES: dict[Callable[..., Any], Mapping[str, Any]] = {
    fields.parse_flag: {"type": "boolean"},
    fields.parse_folder: _PATH,
    fields.parse_existing: _PATH,
    fields.parse_new_folder: _PATH,
    fields.parse_pattern: _TEXT,
    fields.parse_texts: _TEXTS,
    fields.parse_names: _TEXTS,
    fields.parse_scope: {"anyOf": [{**_TEXTS, "maxItems": 0}, {**_TEXTS, "minItems": 2, "maxItems": 2}]},
    fields.parse_summary_mode: {"enum": ["statistics", "md5", "xor"]},
    fields.parse_numbers: _NUMBERS,
    fields.parse_count: {"type": "integer", "minimum": 1, "maximum": fields.MAX_NUMBER},
    fields.parse_size: {"type": "integer", "minimum": 0, "maximum": fields.MAX_NUMBER},
    fields.parse_limit: {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]},
    fields.parse_gib: {
        "anyOf": [{"const": -1}, {"type": "number", "exclusiveMinimum": 0, "maximum": fields.MAX_NUMBER}]
    },
    fields.parse_number_above: {"type": "number", "exclusiveMinimum": 0},
    fields.parse_ascending: {"type": "array", "items": {"type": "number"}, "minItems": 1},
}
"""The values that a parser takes; rules among several values are left to the parser."""


def schema() -> dict[str, Any]:
    """The JSON Schema of the file. Other keys are allowed, as they are in the file."""
    texts = {
        name: " ".join(text.replace("``", "").split())
        for names, text in re.findall(r"^        ([\w, ]+): (.+(?:\n {12}.+)*)", Config.__doc__ or "", re.MULTILINE)
        for name in names.split(", ")
    }
    top: dict[str, Any] = {"$schema": {"type": "string"}}
    top.update((name, _property(key, texts)) for name, key in KEYS.items() if not key.tasks)
    for task in TASKS:
        keys = {name: _property(key, texts) for name, key in KEYS.items() if task in key.tasks}
        top[task] = {"type": ["object", "null"], "description": f"settings of task {task}", "properties": keys}
    without_effect = {"deprecated": True, "description": "a key of msProbe without effect"}
    top.update((name, without_effect) for name in WITHOUT_EFFECT)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "configuration file of msprobe",
        "type": "object",
        "properties": top,
    }


def template(task: str) -> dict[str, Any]:
    """A file with the keys that have an effect for `task`, each with its default."""
    level = "mix" if task == "structure" else Config.level
    used = Config(task=task, level=level)
    keys = [(name, key) for name, key in KEYS.items() if not key.unused(used) and key.default is not None]
    top = {name: _written(key) for name, key in keys if not key.tasks}
    section = {name: _written(key) for name, key in keys if task in key.tasks}
    return {**top, "task": task, "level": level, **({task: section} if section else {})}


def _property(key: Key, texts: Mapping[str, str]) -> dict[str, Any]:
    words = getattr(key.parse, "allowed", ())
    if isinstance(key.parse, fields.some_of):
        shape: Mapping[str, Any] = {"type": "array", "items": {"enum": list(words)}}
    else:
        shape = {"enum": list(words)} if words else _SHAPES[key.parse]
    # `null` is the same as no key.
    found: dict[str, Any] = {"anyOf": [{"type": "null"}, dict(shape)]}
    if key.attribute in texts:
        found["description"] = texts[key.attribute]
    if key.default is not None:
        found["default"] = _written(key)
    return found


def _written(key: Key) -> Any:
    """The default as the file has it."""
    if isinstance(key.parse, fields.some_of):
        return sorted(key.default) or [key.parse.everything]
    return list(key.default) if isinstance(key.default, tuple) else key.default
