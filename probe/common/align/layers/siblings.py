"""Numbered layers of one list, where one run has more of them than the other.

A layer that is inserted moves the numbers of all that follow. What the layers hold tells which of them correspond:
siblings are aligned by the values of their parameters where these contradict the numbers. Without such evidence the
numbers stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from probe.common.align.call_order import pairs_in_order
from probe.common.align.calls import Calls
from probe.common.align.layers.module_paths import Path
from probe.common.align.layers.same_values import Label, SameValues
from probe.common.dump.naming import ParsedName, is_module, parse, record_name
from probe.common.dump.reading.records import PARAMETERS, Item

_SAME = 0.5
"""The share of the parameters that two siblings have to hold the same of to correspond against their numbers."""
# No module is called so.
_ALONE = "+"


@dataclass(frozen=True)
class Renumbered:
    """The way in which the paths of the target's layers read on the golden side, where numbers have moved."""

    paths: dict[Path, Path] = field(default_factory=dict)
    """Layers whose number is another one, with all that is inside; what the target has alone gets a path of its own."""

    def __bool__(self) -> bool:
        return bool(self.paths)

    def record(self, name: str) -> str:
        """The name that a record of the target has on the golden side."""
        parsed = parse(name) if self.paths and is_module(name) else None
        return name if parsed is None else record_name(ParsedName(self._base(parsed.base), *parsed[1:]))

    def _base(self, base: str) -> str:
        root, *path = base.split(".")
        for length in range(len(path), 0, -1):
            other = self.paths.get(tuple(path[:length]))
            if other is not None:
                return ".".join((root, *other, *path[length:]))
        return base


@dataclass
class _Layer:
    """A layer, as the first of its forward records says."""

    class_name: str = ""
    parameters: dict[str, Item] = field(default_factory=dict)
    inside: dict[str, _Layer] = field(default_factory=dict)

    def numbers(self) -> list[str]:
        """The layers inside that have numbers, in their order."""
        return sorted((name for name in self.inside if name.isdigit()), key=int)

    def all_parameters(self, start: str = "") -> Iterator[tuple[str, Item]]:
        """Its parameters and those inside, by their names in it."""
        for name, item in self.parameters.items():
            yield start + name, item
        for name, layer in self.inside.items():
            yield from layer.all_parameters(f"{start}{name}.")


def renumbered(both: Calls) -> Renumbered:
    """The way in which the numbers of layers have moved between two runs of one framework."""
    names, golden_names = ([call.record.name for call in side] for side in both)
    if names == golden_names:
        # Most runs that are compared; to take the names of layers apart takes as long as to match all items.
        return Renumbered()
    target, golden = (_tree([(call.record.name, call.items) for call in side]) for side in both)
    if not _has_other_numbers(target, golden):
        return Renumbered()
    values = SameValues(*([item for _, item in side.all_parameters()] for side in (target, golden)))
    search = _MovedNumbers(values)
    search.look_into((), (), target, golden)
    return Renumbered(search.paths)


def _tree(calls: Sequence[tuple[str, list[Item]]]) -> _Layer:
    top = _Layer()
    layers: dict[str, _Layer] = {}
    for name, items in calls:
        # Most calls are those of functions, and to take a name apart takes time.
        parsed = parse(name) if is_module(name) else None
        if parsed is None:
            continue
        layer = layers.get(parsed.base)
        if layer is None:
            layer = layers[parsed.base] = _layer_in(top, parsed.base)
        for item in items if not layer.parameters else ():
            if item.state == PARAMETERS:
                layer.parameters[item.name.rpartition(".")[2]] = item
    return top


def _layer_in(top: _Layer, base: str) -> _Layer:
    """The layer of a module's records, made where it is missing."""
    _, *path, class_name = base.split(".")
    layer = top
    for part in path:
        layer = layer.inside.setdefault(part, _Layer())
    layer.class_name = layer.class_name or class_name
    return layer


def _has_other_numbers(target: _Layer, golden: _Layer) -> bool:
    """True if one side has more numbered layers somewhere."""
    if len(target.numbers()) != len(golden.numbers()):
        return True
    both = target.inside.keys() & golden.inside.keys()
    return any(_has_other_numbers(target.inside[name], golden.inside[name]) for name in both)


class _MovedNumbers:
    """Looks for numbers that have moved, from the outermost layers inwards."""

    def __init__(self, values: SameValues) -> None:
        self._values = values
        self.paths: dict[Path, Path] = {}

    def look_into(self, path: Path, other_path: Path, target: _Layer, golden: _Layer) -> None:
        """Look at the layers inside of two that correspond."""
        pairs = {name: name for name in target.inside if name in golden.inside}
        mine, theirs = target.numbers(), golden.numbers()
        if mine and theirs and len(mine) != len(theirs):
            moved = self._aligned(target, golden)
            if moved is not None:
                pairs = {name: other for name, other in pairs.items() if not name.isdigit()}
                pairs.update(moved)
                for name in mine:
                    other = moved.get(name)
                    if other != name:
                        self.paths[(*path, name)] = (*other_path, f"{_ALONE}{name}" if other is None else other)
        for name, other in pairs.items():
            # Inside of a layer that has moved, the path of the layer itself says it.
            self.look_into((*path, name), (*other_path, other), target.inside[name], golden.inside[other])

    def _aligned(self, target: _Layer, golden: _Layer) -> dict[str, str] | None:
        """The numbered layers that correspond; ``None`` where their numbers say it."""
        mine, theirs = target.numbers(), golden.numbers()
        contents = [
            [self._contents(side.inside[name]) for name in names] for side, names in ((target, mine), (golden, theirs))
        ]
        shares = [[_share(one, other) for other in contents[1]] for one in contents[0]]
        by_number = sum(shares[i][theirs.index(name)] for i, name in enumerate(mine) if name in theirs)
        anchors, by_value = _best(shares, mine, theirs)
        if by_value <= by_number:
            return None
        found = {mine[i]: theirs[j] for i, j in anchors}
        start = other_start = 0
        for i, j in [*anchors, (len(mine), len(theirs))]:
            gap, other_gap = mine[start:i], theirs[other_start:j]
            found.update(_in_gap(gap, other_gap, target, golden))
            start, other_start = i + 1, j + 1
        # Numbers pair all that the shorter side has; layers that moved leave no more of them alone.
        return found if len(found) >= min(len(mine), len(theirs)) else None

    def _contents(self, layer: _Layer) -> dict[str, Label | None]:
        """The values that the parameters of a layer hold, but for constants, which say nothing."""
        return {name: self._values.label(item) for name, item in layer.all_parameters() if _is_evidence(item)}


def _share(one: dict[str, Label | None], other: dict[str, Label | None]) -> float:
    """The share of parameters that hold the same."""
    same = sum(label is not None and other.get(name) == label for name, label in one.items())
    return same / max(len(one), len(other), 1)


def _best(shares: list[list[float]], mine: Sequence[str], theirs: Sequence[str]) -> tuple[list[tuple[int, int]], float]:
    """The indexes of the best match, both ascending, by what is the same, then by numbers; and how much that is."""
    rows, columns = len(mine), len(theirs)
    most = [[(0.0, 0)] * (columns + 1) for _ in range(rows + 1)]
    for i in reversed(range(rows)):
        for j in reversed(range(columns)):
            most[i][j] = max(most[i + 1][j], most[i][j + 1])
            if shares[i][j] >= _SAME:
                most[i][j] = max(most[i][j], _added(most[i + 1][j + 1], shares[i][j], mine[i] == theirs[j]))
    found = []
    i = j = 0
    while i < rows and j < columns:
        both = shares[i][j] >= _SAME
        if both and most[i][j] == _added(most[i + 1][j + 1], shares[i][j], mine[i] == theirs[j]):
            found.append((i, j))
            i, j = i + 1, j + 1
        elif most[i][j] == most[i + 1][j]:
            i += 1
        else:
            j += 1
    return found, most[0][0][0]


def _added(rest: tuple[float, int], share: float, has_same_number: bool) -> tuple[float, int]:
    return rest[0] + share, rest[1] + has_same_number


def _in_gap(mine: Sequence[str], theirs: Sequence[str], target: _Layer, golden: _Layer) -> dict[str, str]:
    """Layers between those that hold the same: as many correspond, otherwise those of the same classes."""
    if len(mine) == len(theirs):
        return dict(zip(mine, theirs))
    classes, golden_classes = (
        [side.inside[name].class_name for name in names] for side, names in ((target, mine), (golden, theirs))
    )
    return {mine[i]: theirs[j] for i, j in pairs_in_order(classes, golden_classes)}


def _is_evidence(item: Item) -> bool:
    return item.is_tensor and (item.md5 is not None if item.max is None else item.max != item.min)
