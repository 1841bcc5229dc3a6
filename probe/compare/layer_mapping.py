"""Two networks matched by where in the module tree a call stands, given only what layers are called differently.

Every record has a scope: of a module its own path, of an API the path of the module it ran inside and its name. A
target's scope is translated part by part from the root, by the rules for the class of the layer reached so far, and
the n-th record there meets the n-th record of the golden side in the translated scope.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from probe.common.errors import MsprobeException
from probe.common.naming import BACKWARD, FORWARD, is_module, parse
from probe.compare.mapping_files import api_names, load_yaml
from probe.compare.matching import Call
from probe.compare.name_mapping import PARAMETER_NAMES, map_api
from probe.compare.sources import Tree

TOP = "TopLayer"
UNMATCHED = "N/A"
_BLOCKS = "layers"

Path = tuple[str, ...]
Key = tuple[Path, str, bool]
"""Scope, direction, and whether it is a module."""
Rules = dict[str, dict[Path, Path]]
"""By the class of a layer: paths below it and what they are called on the golden side."""


def load_rules(path: str) -> Rules:
    """Read a file of layer names.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    content = load_yaml(path)
    if content is None:
        return {}
    rules: Rules = {}
    if not isinstance(content, dict):
        raise MsprobeException(f"{path}: expected classes of layers, each with lines of the form `name: name`.")
    for layer, names in content.items():
        if not isinstance(names, dict):
            raise MsprobeException(f"{path}: {layer!r}: expected lines of the form `name: name`.")
        # Old files say Cell for the top.
        of_layer = rules.setdefault(TOP if layer == "Cell" else str(layer), {})
        for mine, theirs in names.items():
            of_layer[_parts(mine)] = _parts(theirs)
    return rules


def _parts(name: Any) -> Path:
    return tuple(part for part in str(name).partition("(")[0].strip().split(".") if part)


@dataclass
class _Side:
    """The records of one dump by scope."""

    scopes: dict[str, Key] = field(default_factory=dict)
    classes: dict[Path, str] = field(default_factory=dict)

    def places(self) -> dict[Key, list[str]]:
        found: dict[Key, list[str]] = {}
        for name, key in self.scopes.items():
            found.setdefault(key, []).append(name)
        return found


def _side(calls: list[Call], tree: Tree | None) -> _Side:
    side = _Side()
    for call in calls:
        name = call.record.name
        parsed = parse(name)
        if parsed is None:
            continue
        if parsed.is_module:
            path, class_name = _module(parsed.base)
            side.classes[path] = class_name
        else:
            path = (*_parent(name, parsed.base, parsed.number, tree), _api(parsed.base))
        side.scopes[name] = path, parsed.direction, parsed.is_module
    for name in tree or ():
        parsed = parse(name)
        if parsed is not None and parsed.is_module:
            path, class_name = _module(parsed.base)
            side.classes.setdefault(path, class_name)
    blocks = _numbers(side)
    side.scopes = {name: (_from_zero(key[0], blocks), *key[1:]) for name, key in side.scopes.items()}
    side.classes = {_from_zero(path, blocks): class_name for path, class_name in side.classes.items()}
    return side


def _module(base: str) -> tuple[Path, str]:
    _, *path, class_name = base.split(".")
    return tuple(path), class_name


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


def _api(base: str) -> str:
    return map_api(base, api_names()).rpartition(".")[2]


def _numbers(side: _Side) -> dict[Path, dict[str, str]]:
    """The blocks of every list of layers, numbered from 0: a pipeline stage may hold the last ones only."""
    found: dict[Path, set[int]] = {}
    for path, _, _ in side.scopes.values():
        for place, part in enumerate(path[:-1]):
            if part == _BLOCKS and path[place + 1].isdigit():
                found.setdefault(path[: place + 1], set()).add(int(path[place + 1]))
    return {path: {str(n): str(i) for i, n in enumerate(sorted(numbers))} for path, numbers in found.items()}


def _from_zero(path: Path, blocks: dict[Path, dict[str, str]]) -> Path:
    return tuple(
        blocks.get(path[:place], {}).get(part, part) if place and path[place - 1] == _BLOCKS else part
        for place, part in enumerate(path)
    )


def translate(path: Path, classes: dict[Path, str], rules: Rules) -> Path:
    """`path` as the golden side calls it; of several rules that fit the longest is taken."""
    found: list[str] = []
    place = 0
    while place < len(path):
        names = rules.get(classes.get(path[:place], "") if place else TOP, {})
        fits = [mine for mine in names if path[place : place + len(mine)] == mine]
        best = max(fits, key=len, default=())
        found += names[best] if best else path[place : place + 1]
        place += len(best) or 1
    return tuple(found)


def map_items(
    target: list[Call],
    golden: list[Call],
    trees: tuple[Tree | None, Tree | None],
    rules: Rules,
    rename_parameters: bool,
) -> dict[str, str]:
    """Every item of the target and its counterpart's name, or ``N/A``.

    Raises:
        MsprobeException: only one side has a call tree.
    """
    if (trees[0] is None) != (trees[1] is None):
        raise MsprobeException("a layer mapping (-lm) needs construct.json beside both dumps; one of them has none.")
    mine, theirs = _side(target, trees[0]), _side(golden, trees[1])
    places = theirs.places()
    counterpart: dict[str, str] = {}
    for key, names in mine.places().items():
        path, direction, module = key
        others = places.get((translate(path, mine.classes, rules), direction, module), [])
        counterpart.update(zip(names, others))
    items = {call.record.name: {item.name for item in call.items} for call in golden}
    # What was saved stands in no tree.
    counterpart.update({call.record.name: call.record.name for call in target if call.record.name not in mine.scopes})
    found = {}
    for call in target:
        name = call.record.name
        other = counterpart.get(name)
        other = other if other in items else None
        for item in call.items:
            suffix = item.name[len(name) :]
            candidate = UNMATCHED if other is None else other + suffix
            if other is not None and candidate not in items[other]:
                candidate = other + _renamed(suffix) if rename_parameters else UNMATCHED
                candidate = candidate if candidate in items[other] else UNMATCHED
            found[item.name] = candidate
    return found


def _renamed(suffix: str) -> str:
    above, _, name = suffix.rpartition(".")
    return f"{above}.{PARAMETER_NAMES.get(name, name)}"
