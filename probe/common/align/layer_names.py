"""Two networks matched by where in the module tree a call stands, given only what layers are called differently.

Every record has a scope: of a module its own path, of an API the path of the module it ran inside. A target's scope is
translated part by part from the root, by the rules for the class of the layer reached so far, and what stands there on
the golden side is the counterpart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from probe.common.align.calls import KeyedCall
from probe.common.align.mapping_files import load_mapping, translated_names
from probe.common.align.name_mapping import map_api
from probe.common.dump.naming import BACKWARD, FORWARD, is_module, parse
from probe.common.dump.reading.sources import Tree
from probe.common.errors import MsprobeException
from probe.common.show import show

TOP = "TopLayer"
UNMATCHED = "N/A"

Path = tuple[str, ...]
Rules = dict[str, dict[Path, Path]]
"""Paths below a layer and their names on the golden side, by the class of the layer."""


def load_rules(path: str) -> Rules:
    """Read a file of layer names.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    rules: Rules = {}
    for layer, names in load_mapping(path, "classes of layers, each with lines of the form `name: name`").items():
        if not isinstance(names, dict):
            raise MsprobeException(f"{path}: {show(layer)}: expected lines of the form `name: name`.")
        # Old files say Cell for the top.
        of_layer = rules.setdefault(TOP if layer == "Cell" else str(layer), {})
        for mine, theirs in names.items():
            of_layer[_parts(mine)] = _parts(theirs)
    return rules


def _parts(name: Any) -> Path:
    # Nothing stands for a level that the other side does not have.
    text = "" if name is None else str(name)
    return tuple(part for part in text.partition("(")[0].strip().split(".") if part)


def translate(path: Path, classes: dict[Path, str], rules: Rules) -> Path:
    """`path` as the golden side calls it; of several rules that fit the longest is taken."""
    found: list[str] = []
    start = 0
    while start < len(path):
        names = rules.get(classes.get(path[:start], "") if start else TOP, {})
        fits = (path[start:end] for end in range(len(path), start, -1)) if names else ()
        best = next((part for part in fits if part in names), ())
        found += names[best] if best else path[start : start + 1]
        start += len(best) or 1
    return tuple(found)


def translated_paths(target: ScopedRecords, golden: ScopedRecords, rules: Rules) -> dict[str, str]:
    """The golden path of each path of a module that both sides have, as the records name them."""
    there = {golden.scopes[name][0]: name for name in golden.scopes if golden.scopes[name][2]}
    found: dict[str, str] = {}
    for name, (path, _, is_layer) in target.scopes.items():
        other = there.get(translate(path, target.classes, rules)) if is_layer else None
        if other is not None:
            found[_path(name)] = _path(other)
    return found


def _path(record: str) -> str:
    parsed = parse(record)
    return "" if parsed is None else ".".join(_module(parsed.base)[0])


# --- the place in the module tree of every record

_BLOCKS = "layers"

Scope = tuple[Path, str, bool]
"""A path, a direction, and whether it is a module. The path of an API is that of the module it ran inside, and its
name."""


@dataclass
class ScopedRecords:
    """The records of one dump by scope."""

    framework: str
    scopes: dict[str, Scope] = field(default_factory=dict)
    """The scope of each record, in order; what is in no tree is left out."""
    classes: dict[Path, str] = field(default_factory=dict)
    """Layers that ran, by their path."""


def side_of(calls: list[KeyedCall], tree: Tree | None, framework: str) -> ScopedRecords:
    """The records of a dump by scope; without a tree every API stands at the top.

    The blocks of every list of layers are counted from 0: a pipeline stage may hold the last ones only.
    """
    side = ScopedRecords(framework)
    for call in calls:
        name = call.record.name
        parsed = parse(name)
        if parsed is None:
            continue
        if parsed.is_module:
            path, class_name = _module(parsed.base)
            side.classes[path] = class_name
        else:
            path = (*_parent(name, parsed.base, parsed.number, tree), _api(parsed.base, framework))
        side.scopes[name] = path, parsed.direction, parsed.is_module
    for name in tree or ():
        parsed = parse(name) if is_module(name) else None
        if parsed is not None:
            path, class_name = _module(parsed.base)
            side.classes.setdefault(path, class_name)
    blocks = _numbers(side)
    if blocks:
        side.scopes = {name: (_from_zero(key[0], blocks), *key[1:]) for name, key in side.scopes.items()}
        side.classes = {_from_zero(path, blocks): class_name for path, class_name in side.classes.items()}
    return side


def _module(base: str) -> tuple[Path, str]:
    _, *path, class_name = base.split(".")
    # No path is that of the top, and a model that is one layer is below it.
    return tuple(path) or (class_name,), class_name


def _parent(name: str, base: str, number: int, tree: Tree | None) -> Path:
    if tree is None:
        return ()
    # A backward call stands where its forward call stood.
    parent = tree.get(f"{base}.{number}.{FORWARD}") if name.endswith(BACKWARD) else None
    parent = parent or tree.get(name)
    if parent is None or not is_module(parent):
        return ()
    parsed = parse(parent)
    return () if parsed is None else _module(parsed.base)[0]


def _api(base: str, framework: str) -> str:
    return map_api(base, translated_names(framework)).rpartition(".")[2]


def _numbers(side: ScopedRecords) -> dict[Path, dict[str, str]]:
    found: dict[Path, set[int]] = {}
    for path, _, _ in side.scopes.values():
        for index, part in enumerate(path[:-1]):
            if part == _BLOCKS and path[index + 1].isdigit():
                found.setdefault(path[: index + 1], set()).add(int(path[index + 1]))
    return {
        path: {str(number): str(index) for index, number in enumerate(sorted(numbers))}
        for path, numbers in found.items()
        if len(numbers) <= max(numbers)
    }


def _from_zero(path: Path, blocks: dict[Path, dict[str, str]]) -> Path:
    return tuple(
        blocks.get(path[:index], {}).get(part, part) if index and path[index - 1] == _BLOCKS else part
        for index, part in enumerate(path)
    )
