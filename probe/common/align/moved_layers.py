"""Numbered layers of one list, where one run of a program has more of them than the other.

A layer that is inserted moves the numbers of all that follow. The parameters that siblings hold say which of them
correspond. Without such evidence the numbers stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.align.call_order import Key, pairs_in_order
from probe.common.align.contents import Contents
from probe.common.align.layer_pairs import Layer, Network, Partners, network, parameters_of
from probe.common.align.side import Side
from probe.common.numerics.error_bounds import extent

_ALONE = "+"
"""Stands before the number of a layer that the golden side lacks; no module is called so."""


def moved_paths(sides: tuple[Side, Side]) -> Partners:
    """The golden path of each layer whose number is another one there.

    What the target has alone has a path of its own.
    """
    networks = [network(side) for side in sides]
    if networks[0].keys() == networks[1].keys():
        return {}
    lists = [_lists(each) for each in networks]
    contents: Contents | None = None
    found: Partners = {}
    for path in sorted(lists[0], key=lambda path: path.count(".")):
        other = moved_path(path, found)
        mine, theirs = lists[0][path], lists[1].get(other, {})
        if theirs and len(mine) != len(theirs):
            contents = contents or Contents(parameters_of(networks[0]), parameters_of(networks[1]))
            keys = [[_weight(layers, contents) for layers in side.values()] for side in (mine, theirs)]
            pairs = _moved(list(mine), list(theirs), keys)
            for number in mine if pairs else ():
                if pairs.get(number) != number:
                    found[_joined(path, number)] = _joined(other, pairs.get(number, f"{_ALONE}{number}"))
    return found


def moved_path(path: str, paths: Partners) -> str:
    """The path of a layer on the golden side, given what `moved_paths` found."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1) if paths else ():
        other = paths.get(".".join(parts[:length]))
        if other is not None:
            return ".".join((other, *parts[length:]))
    return path


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _lists(side: Network) -> dict[str, dict[str, list[Layer]]]:
    """The layers inside of each number below each path, numbers in ascending order."""
    found: dict[str, dict[str, list[Layer]]] = {}
    for layer in side.values():
        parts = layer.path.split(".")
        for end, name in enumerate(parts):
            if name.isdigit():
                found.setdefault(".".join(parts[:end]), {}).setdefault(name, []).append(layer)
    return {path: {name: inside[name] for name in sorted(inside, key=int)} for path, inside in found.items()}


def _weight(layers: Sequence[Layer], contents: Contents) -> Key:
    """The content of the largest parameter inside of a layer that the other run has, too."""
    known = [
        item for item in parameters_of({layer.path: layer for layer in layers}) if contents.label(item) is not None
    ]
    return contents.label(max(known, key=lambda item: extent(item.shape).elements, default=None))


def _moved(mine: Sequence[str], theirs: Sequence[str], keys: Sequence[Sequence[Key]]) -> Partners:
    """The numbers that correspond; empty where they are the same or nothing tells."""
    at = dict(zip(theirs, keys[1]))
    by_number = sum(key is not None and key == at.get(name) for name, key in zip(mine, keys[0]))
    anchors = pairs_in_order(keys[0], keys[1])
    if len(anchors) <= by_number:
        return {}
    found: Partners = {}
    start = other_start = 0
    for i, j in [*anchors, (len(mine), len(theirs))]:
        if i - start == j - other_start:
            found.update(zip(mine[start:i], theirs[other_start:j]))
        found.update(zip(mine[i : i + 1], theirs[j : j + 1]))
        start, other_start = i + 1, j + 1
    # Numbers pair all that the shorter side has; layers that moved leave no more of them alone.
    return found if len(found) >= min(len(mine), len(theirs)) else {}
