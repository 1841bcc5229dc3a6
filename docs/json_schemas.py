"""The JSON Schema of every ``--json``, and the page on it, made of the types in `probe/api/commands/printed`.

    python docs/json_schemas.py

writes ``docs/reference/json.schema.json`` and ``docs/reference/json.md``. Needs Python 3.10 or newer.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import NotRequired, get_origin, get_type_hints, is_typeddict

from probe.api.commands.printed import PRINTED
from probe.api.commands.printed.answer import Trouble
from probe.api.commands.question import JSON_VERSION

REFERENCE = Path(__file__).parent / "reference"
_REF = "#/$defs/"
_NUMBER = {
    "anyOf": [
        {"type": "number"},
        {
            "type": "object",
            "properties": {"number": {"enum": ["NaN", "Infinity", "-Infinity"]}},
            "required": ["number"],
            "additionalProperties": False,
        },
    ],
    "description": "A number; one that JSON lacks is an object.",
}
_HEAD = """# What `--json` prints

```console
$ msprobe overflow_check run_a/step0 -o result --json | grep -e '"command"' -e '"status"'
 "command": "overflow_check",
 "status": 0,
```

`--json` of every command prints one JSON value, an object or a list of objects, for other programs. This page
lists the keys of each command. [`json.schema.json`](json.schema.json) is the same as a JSON Schema (2020-12).
Its `anyOf` has an entry for each command, and for each flag with which a command prints something else; the title of
the entry is the name of the command. Within a `version` no key is removed or changes its meaning; keys may be added.
The tests validate what the commands print. `python docs/json_schemas.py` makes the page and the schema from
`probe/api/commands/printed`.

If there is no answer (exit status 2 or 130), the value is an object with these four keys alone:

"""


def schema() -> dict[str, Any]:
    """The JSON Schema of all commands: one definition for each, with its name as title."""
    types = [Trouble, *PRINTED.values()]
    shapes, components = msgspec.json.schema_components(types, ref_template=_REF + "{name}")
    for name, kind in _classes(types).items():
        _complete(components[name], kind)
    # No more keys: otherwise the output of every command would be one.
    commands = [{"title": "trouble", **shapes[0], "maxProperties": len(_hints(Trouble))}]
    commands += [{"title": name, **shape} for name, shape in zip(PRINTED, shapes[1:])]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"output of msprobe COMMAND --json, version {JSON_VERSION}",
        "anyOf": commands,
        "$defs": {"Number": _NUMBER, **dict(sorted(_with_numbers(components).items()))},
    }


def _classes(types: Iterable[Any]) -> dict[str, type]:
    """The classes that the types are made of, by their names."""
    found: dict[str, type] = {}

    def look(kind: Any) -> None:
        for part in getattr(kind, "__args__", ()):
            look(part)
        if _has_fields(kind) and kind.__name__ not in found:
            found[kind.__name__] = kind
            for hint in _hints(kind).values():
                look(hint)

    for kind in types:
        look(kind)
    return found


def _has_fields(kind: Any) -> bool:
    """True of a class that stands for an object with keys."""
    return is_typeddict(kind) or is_dataclass(kind) or hasattr(kind, "__struct_fields__")


def _hints(kind: Any, extras: bool = False) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=extras)


def _optional(kind: Any) -> set[str]:
    """The keys of a class that may be absent: those of `total=False`, and those that say so themselves."""
    marked = {name for name, hint in _hints(kind, extras=True).items() if get_origin(hint) is NotRequired}
    return marked | set(getattr(kind, "__optional_keys__", ()))


def _complete(component: dict[str, Any], kind: type) -> None:
    """Say of an object which keys it always has and what each holds, in the order of the class."""
    properties = component["properties"] = {name: component["properties"][name] for name in _hints(kind)}
    optional = _optional(kind)
    texts = _texts(kind)
    for name, shape in properties.items():
        shape.pop("default", None)
        if name in texts:
            shape["description"] = texts[name]
    component["required"] = [name for name in properties if name not in optional]


def _texts(kind: type) -> dict[str, str]:
    """The docstrings below the attributes of a class and of those it is made of."""
    found: dict[str, str] = {}
    for base in reversed(getattr(kind, "__orig_bases__", kind.__mro__)):
        if _has_fields(base) and base is not kind:
            found |= _texts(base)
    try:
        body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
    except (OSError, TypeError):
        return found  # made by a call
    for before, after in zip(body, body[1:]):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(before.target, ast.Name)
            found[before.target.id] = " ".join(str(after.value.value).replace("``", "`").split())
    return found


def _with_numbers(value: Any) -> Any:
    """A schema in which each number may be one that JSON lacks."""
    if isinstance(value, dict):
        if value.get("type") == "number":
            return {"$ref": f"{_REF}Number", **{key: each for key, each in value.items() if key != "type"}}
        return {key: _with_numbers(each) for key, each in value.items()}
    return [_with_numbers(each) for each in value] if isinstance(value, list) else value


# --- the page


def page(found: dict[str, Any]) -> str:
    """The page on the schema."""
    definitions = found["$defs"]
    _, *commands = found["anyOf"]
    first = set(definitions["Trouble"]["properties"])
    parts = [_HEAD, _table(definitions["Trouble"], set()), "\n## Commands\n"]
    shown: dict[str, str] = {}
    for command in commands:
        title, is_list = command["title"], "items" in command
        name = _name(command.get("items", command))
        parts.append(f"\n### {title}\n\n")
        if not name:
            parts.append("An object; its keys are those of the files.\n")
        elif name in shown:
            parts.append(f"The same as `{shown[name]}`, above.\n")
        else:
            shown[name] = title
            parts.append("A list; each object has these keys.\n\n" if is_list else "")
            parts.append(_table(definitions[name], set() if is_list else first))
    parts.append("\n## Objects in them\n")
    for name, definition in definitions.items():
        if name not in shown and name not in ("Trouble", "Number"):
            parts.append(f"\n### {name}\n\n{_sentence(definition)}\n\n" + _table(definition, set()))
    return "".join(parts)


def _sentence(definition: dict[str, Any]) -> str:
    return " ".join(re.split(r"\n\s*\n", definition.get("description", ""))[0].replace("``", "`").split())


def _name(shape: dict[str, Any]) -> str:
    return str(shape.get("$ref", "")).removeprefix(_REF)


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _table(definition: dict[str, Any], left_out: set[str]) -> str:
    """The table of the keys of an object; keys of one type whose names say all share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for key, shape in definition["properties"].items():
        if key not in left_out:
            optional = "" if key in definition["required"] else ", may be absent"
            kind, content = f"{_type(shape)}{optional}", shape.get("description", "")
            rows.setdefault((kind, content and f"{content} |"), []).append(f"`{key}`")
    lines = [f"| {', '.join(keys)} | {kind} | {content or '|'}" for (kind, content), keys in rows.items()]
    return "\n".join(["| key | type | content |", "|---|---|---|", *lines]) + "\n"


def _type(shape: dict[str, Any]) -> str:
    if name := _name(shape):
        return "number" if name == "Number" else _link(name)
    if "anyOf" in shape:
        return " or ".join(dict.fromkeys(map(_type, shape["anyOf"])))
    if "enum" in shape:
        return " or ".join(f"`{each}`" for each in shape["enum"])
    kind = shape.get("type", "any value")
    if kind == "array":
        items = shape.get("items") or {}
        several = shape.get("prefixItems")
        return f"list of {', '.join(map(_type, several))}" if several else f"list of {_type(items)}"
    if kind == "object" and isinstance(shape.get("additionalProperties"), dict):
        return f"object of {_type(shape['additionalProperties'])}"
    return str(kind)


def files() -> Iterator[tuple[Path, str]]:
    """The files and their texts."""
    found = schema()
    yield REFERENCE / "json.schema.json", _by_definition(found)
    yield REFERENCE / "json.md", page(found)


def _by_definition(found: dict[str, Any]) -> str:
    """The schema with a line for each definition, so that a difference is one of a line."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in found.items() if key != "$defs"]
    inner = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found["$defs"].items())
    return "{\n" + "".join(lines) + '"$defs": {\n' + inner + "\n}\n}\n"


if __name__ == "__main__":
    for path, text in files():
        path.write_text(text, encoding="utf-8")
