"""What of a user's mapping file fits nothing in the dumps; of a name written wrongly nothing else would tell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from probe.common import log
from probe.common.config_values import show
from probe.common.naming import is_module
from probe.compare.layer_mapping import TOP, UNMATCHED, Rules
from probe.compare.mapping_files import ApiEntry
from probe.compare.matching import Call, Calls
from probe.compare.scopes import Path, Side


def tell_of_items(path: str, names: dict[str, str], calls: Calls) -> None:
    """Warn of names of a data mapping that no item has."""
    mine, theirs = ({item.name for call in side for item in call.items} for side in calls)
    _tell(path, names, mine.__contains__, "the target")
    _tell(path, [name for name in names.values() if name != UNMATCHED], theirs.__contains__, "the golden side")


def tell_of_apis(path: str, entries: Collection[ApiEntry], bases: tuple[set[str], set[str]]) -> None:
    """Warn of entries of an API mapping whose APIs do not occur."""
    mine, theirs = bases
    _tell(path, [entry.target for entry in entries], mine.__contains__, "the target")
    _tell(path, [entry.golden for entry in entries], theirs.__contains__, "the golden side")


def tell_of_cells(path: str, names: dict[str, str], calls: Calls) -> None:
    """Warn of names of a cell mapping that are no part of a module's name."""
    mine, theirs = map(_modules, calls)
    _tell(path, names, lambda part: any(part in module for module in mine), "the target")
    _tell(path, names.values(), lambda part: any(part in module for module in theirs), "the golden side")


def _modules(side: list[Call]) -> set[str]:
    return {parsed.base for call in side if is_module(call.key) and (parsed := call.record.parsed) is not None}


def tell_of_layers(path: str, rules: Rules, target: Side) -> None:
    """Warn of paths of a layer mapping that no layer of their class has."""
    paths = [*target.classes, *(scope for scope, _, _ in target.scopes.values())]
    places = {place[:end] for place in paths for end in range(1, len(place) + 1)}
    layers: dict[str, list[Path]] = {TOP: [()]}
    for layer, class_name in target.classes.items():
        layers.setdefault(class_name, []).append(layer)
    found = {
        f"{class_name}: {'.'.join(below)}": any(layer + below in places for layer in layers.get(class_name, ()))
        for class_name, names in rules.items()
        for below in names
    }
    _tell(path, found, found.__getitem__, "the target")


def _tell(path: str, entries: Iterable[str], fits: Callable[[str], bool], where: str) -> None:
    entries = list(entries)
    unused = [entry for entry in entries if not fits(entry)]
    if unused:
        count = f"{len(unused)} of {len(entries)} names fit nothing in {where}"
        log.warning(f"{path}: {count}, the first is {show(unused[0])}.", once=f"unused {path} {where}")
