"""The place in the module tree of every record of a dump."""

from __future__ import annotations

from dataclasses import dataclass, field

from probe.common.align.calls import KeyedCall
from probe.common.align.mapping_files import translated_names
from probe.common.align.name_mapping import map_api
from probe.common.dump.naming import BACKWARD, FORWARD, is_module, parse
from probe.common.dump.reading.sources import Tree

_BLOCKS = "layers"

Path = tuple[str, ...]
Scope = tuple[Path, str, bool]
"""A path, a direction, and whether it is a module. The path of an API is that of the module it ran inside, and its
name."""


@dataclass
class ScopedRecords:
    """The records of one dump by scope."""

    framework: str
    calls: dict[str, KeyedCall] = field(default_factory=dict)
    """The calls by the names of their records, in order; what is in no tree is left out."""
    scopes: dict[str, Scope] = field(default_factory=dict)
    """The scope of each of these records."""
    classes: dict[Path, str] = field(default_factory=dict)
    """Layers that ran, by their path."""

    def by_scope(self) -> dict[Scope, list[str]]:
        """The records of every scope, in order."""
        found: dict[Scope, list[str]] = {}
        for name, key in self.scopes.items():
            found.setdefault(key, []).append(name)
        return found


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
        side.calls[name] = call
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
