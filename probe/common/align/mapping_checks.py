"""Mapping files of the user that fit nothing in the dumps; nothing else would show that a name is misspelt.

A data mapping is of one pair of dumps, so each of its names is looked for. The other files are often of many networks,
or of a network of which each rank holds a part: of those a warning is logged when no line fits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from probe.common import log
from probe.common.align.calls import Calls, KeyedCall
from probe.common.align.layer_names import TOP, UNMATCHED, Path, Rules, ScopedRecords
from probe.common.align.mapping_files import ApiEntry
from probe.common.dump.naming import is_module
from probe.common.show import show


def warn_of_items(path: str, names: dict[str, str], calls: Calls) -> None:
    """Warn of names of a data mapping that no item has."""
    mine, theirs = ({item.name for call in side for item in call.items} for side in calls)
    golden = [name for name in names.values() if name != UNMATCHED]
    _warn(path, [name for name in names if name not in mine], len(names), "an item of the target")
    _warn(path, [name for name in golden if name not in theirs], len(golden), "an item of the golden side")


def warn_of_apis(path: str, entries: Collection[ApiEntry], in_use: Collection[str]) -> None:
    """Warn of an API mapping without an entry whose APIs both sides have."""
    if not in_use:
        names = [f"{entry.target}, {entry.golden}" for entry in entries]
        _warn(path, names, len(names), "a pair of APIs that the two sides have")


def warn_of_cells(path: str, names: Collection[str], target: list[KeyedCall]) -> None:
    """Warn of a cell mapping without a name that is part of a module's name."""
    records = (call.record.parsed for call in target if is_module(call.key))
    modules = "\n".join({parsed.base.partition(".")[2] for parsed in records if parsed is not None})
    _warn_if_none(path, list(names), lambda name: name in modules, "part of the name of a module of the target")


def warn_of_layers(path: str, rules: Rules, target: ScopedRecords) -> None:
    """Warn of a layer mapping without a path that a layer of its class has below it."""
    paths = [*target.classes, *(scope for scope, _, _ in target.scopes.values())]
    prefixes = {path[:end] for path in paths for end in range(1, len(path) + 1)}
    layers: dict[str, list[Path]] = {TOP: [()]}
    for layer, class_name in target.classes.items():
        layers.setdefault(class_name, []).append(layer)
    found = {
        f"{class_name}: {'.'.join(below)}": any(layer + below in prefixes for layer in layers.get(class_name, ()))
        for class_name, names in rules.items()
        for below in names
    }
    _warn_if_none(path, list(found), found.__getitem__, "a layer and what is below it in the target")


def _warn_if_none(path: str, names: list[str], fits: Callable[[str], bool], expected: str) -> None:
    if not any(map(fits, names)):
        _warn(path, names, len(names), expected)


def _warn(path: str, unused: list[str], number: int, expected: str) -> None:
    if unused:
        text = f"{path}: {len(unused)} of {number} are not {expected}, the first is {show(unused[0])}."
        log.warning(text, once=f"{path}: not {expected}")
