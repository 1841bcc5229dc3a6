"""The layers of two networks that correspond.

By their places in the module trees, by what they hold, by their numbers in a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, Optional

import msgspec

from probe.common.align.calls import KeyedCall, Side
from probe.common.align.contents import Contents, Label, Pairs, ascending, refined
from probe.common.align.name_mapping import load_mapping, map_api, translated_names
from probe.common.align.operations import layer_kind
from probe.common.dump.naming import BACKWARD, FORWARD, is_module, parse
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.dump.reading.sources import Tree
from probe.common.errors import MsprobeException
from probe.common.harmless_text import show
from probe.common.numerics.error_bounds import extent

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


class ScopedRecords(msgspec.Struct):
    """The records of one dump by scope."""

    framework: str
    scopes: dict[str, Scope] = msgspec.field(default_factory=dict)
    """The scope of each record, in order; what is in no tree is left out."""
    classes: dict[Path, str] = msgspec.field(default_factory=dict)
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


# --- layer pairs


Partners = dict[str, str]
"""Paths of layers of the target and of the golden side."""


class Layer(msgspec.Struct, frozen=True):
    """The facts on a layer, from the first of its calls."""

    path: str
    kind: str
    """The class in neutral words, where a framework brings it."""
    parameters: tuple[Item, ...]
    result: Optional[Item]  # noqa: UP045 (evaluated, on Python 3.9 too)
    is_leaf: bool


Network = dict[str, Layer]
"""The layers of one side by their paths, in the order in which their first calls ended."""


def network(side: Side) -> Network:
    """The layers of one side."""
    inner = {above for path in side.modules for above in _above(path)}
    found: Network = {}
    for path, calls in side.modules.items():
        if FORWARD not in calls:
            continue
        first = calls[FORWARD][0]
        parsed = side.parsed[first]
        class_name = "" if parsed is None else parsed.base.rpartition(".")[2]
        parameters = tuple(item for item in side.calls[first].items if item.state == PARAMETERS and item.is_tensor)
        kind = layer_kind(class_name) or class_name
        found[path] = Layer(path, kind, parameters, side.result(first), path not in inner)
    return found


def _above(path: str) -> list[str]:
    """The paths around a path, innermost first."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def paired_layers(sides: tuple[Side, Side], results: Contents) -> Partners:
    """The golden path of each path of the target, of layers that correspond.

    Args:
        sides: the two runs.
        results: the contents of what their calls return.
    """
    search = _Search(network(sides[0]), network(sides[1]), results)
    search.pair_equal_parameters()
    search.between()
    search.around()
    return search.found


class _Search:
    """The pairs that were found so far."""

    def __init__(self, target: Network, golden: Network, results: Contents) -> None:
        self._networks, self._results = (target, golden), results
        self._parameters = Contents(parameters_of(target), parameters_of(golden), in_any_order=True)
        self.found: Partners = {}
        self._back: Partners = {}

    def pair_equal_parameters(self) -> None:
        """Pair layers that hold the same, those of one kind first."""
        groups: dict[Label, tuple[list[Layer], list[Layer]]] = {}
        for number, layers in enumerate(self._networks):
            for layer in layers.values():
                known = [item for item in layer.parameters if self._parameters.label(item) is not None]
                largest = max(known, key=lambda item: extent(item.shape).elements, default=None)
                label = self._parameters.label(largest)
                if label is not None:
                    groups.setdefault(label, ([], []))[number].append(layer)
        for mine, theirs in groups.values():
            for way in (_kind, lambda layer: ()):
                for one, other in self._in_order(mine, theirs, way):
                    self._add(one, other)

    def between(self) -> None:
        """Pair layers of one size that stand between the same two pairs."""
        mine, theirs = ([layer for layer in side.values() if layer.is_leaf] for side in self._networks)
        position = {layer.path: index for index, layer in enumerate(theirs)}
        pairs = ((i, position.get(self.found.get(layer.path, ""), -1)) for i, layer in enumerate(mine))
        anchors = ascending((i, j) for i, j in pairs if j >= 0)
        for one, other in self._in_order(mine, theirs, _place, anchors):
            if not self._results.contradict(one.result, other.result):
                self._add(one, other)

    def _in_order(
        self,
        mine: Sequence[Layer],
        theirs: Sequence[Layer],
        way: Callable[[Layer], Hashable],
        anchors: Pairs | None = None,
    ) -> Iterable[tuple[Layer, Layer]]:
        keys = [
            [None if layer.path in known else way(layer) for layer in layers]
            for layers, known in ((mine, self.found), (theirs, self._back))
        ]
        # Of more between two pairs than the other side has nothing says which one is meant.
        pairs = refined(anchors or [], keys[0], keys[1], as_many=anchors is not None)
        return ((mine[i], theirs[j]) for i, j in pairs)

    def _add(self, one: Layer, other: Layer) -> None:
        if one.path not in self.found and other.path not in self._back:
            self.found[one.path] = other.path
            self._back[other.path] = one.path

    def around(self) -> None:
        """Pair layers that hold most of each other's counterparts."""
        target, golden = self._networks
        votes: Counter[tuple[str, str]] = Counter()
        held, other_held = Counter[str](), Counter[str]()
        for path, other in self.found.items():
            mine = [above for above in _above(path) if above in target and above not in self.found]
            theirs = [above for above in _above(other) if above in golden and above not in self._back]
            held.update(mine)
            other_held.update(theirs)
            votes.update((one, another) for one in mine for another in theirs)
        ranked = []
        balance: Counter[tuple[str, str]] = Counter()
        for (path, other), number in votes.items():
            if 2 * number > held[path] and 2 * number > other_held[other]:
                one, another = target[path], golden[other]
                labels = [self._results.label(layer.result) for layer in (one, another)]
                is_same = labels[0] is not None and labels[0] == labels[1]
                is_other = self._results.contradict(one.result, another.result)
                balance[one.kind, another.kind] += is_same - is_other
                if not is_other:
                    ranked.append((not is_same, -number / (held[path] + other_held[other]), path, other))
        for is_wrong, _, path, other in sorted(ranked):
            # Behind a divergence nothing tells of a layer but others of its kind.
            if not (is_wrong and balance[target[path].kind, golden[other].kind] < 0):
                self._add(target[path], golden[other])


def parameters_of(side: Network) -> Iterable[Item]:
    """The parameters of all layers."""
    return (item for layer in side.values() for item in layer.parameters)


def _kind(layer: Layer) -> Hashable:
    return layer.kind, layer.is_leaf


def _place(layer: Layer) -> Hashable:
    """The sizes of what a layer holds and returns; if it may hand on what it takes, or these are unknown, its kind."""
    kind = layer.kind if layer.result is None or layer.kind.startswith(("dropout", "identity")) else ""
    size = max((extent(item.shape).elements for item in layer.parameters), default=0)
    return kind, size, None if layer.result is None else extent(layer.result.shape).elements


# --- moved layers


_Score = tuple[int, int, int]
"""The parameters that layers share, minus the pairs of other kinds, and the pairs of one number."""


class _Node(msgspec.Struct):
    """A name in the paths of modules."""

    path: str = ""
    """The path of the module that is called so; empty if none was called."""
    inside: dict[str, _Node] = msgspec.field(default_factory=dict)


class _Numbered(msgspec.Struct, frozen=True):
    """The facts on all layers inside of a number of a list."""

    number: str
    parameters: frozenset[Label | None]
    kinds: frozenset[tuple[str, str]]

    def score(self, other: _Numbered) -> _Score:
        """The reasons why two correspond."""
        return (
            len(self.parameters & other.parameters),
            -self.kinds.isdisjoint(other.kinds),
            self.number == other.number,
        )


def moved_layers(sides: tuple[Side, Side]) -> Partners:
    """The golden path of each path of the target that has a counterpart."""
    lists = _Lists(sides)
    found: Partners = {}
    waiting = [(_tree(sides[0].modules), _tree(sides[1].modules))]
    while waiting:
        one, other = waiting.pop()
        if one.path and other.path:
            found[one.path] = other.path
        names = {name: name for name in one.inside if name in other.inside} | lists.moved(one, other)
        waiting += [(one.inside[name], other.inside[there]) for name, there in names.items() if there]
    return found


def _tree(paths: Iterable[str]) -> _Node:
    top = _Node()
    for path in paths:
        node = top
        for name in path.split("."):
            node = node.inside.setdefault(name, _Node())
        node.path = path
    return top


class _Lists:
    """Looks for the numbers that have moved."""

    def __init__(self, sides: tuple[Side, Side]) -> None:
        self._networks = network(sides[0]), network(sides[1])

    @cached_property
    def _contents(self) -> Contents:
        target, golden = self._networks
        return Contents(parameters_of(target), parameters_of(golden))

    def moved(self, one: _Node, other: _Node) -> dict[str, str]:
        """The golden numbers of those of a list, empty for a layer that is alone; nothing if numbers have not moved."""
        numbers = [sorted(filter(str.isdecimal, node.inside), key=int) for node in (one, other)]
        if not all(numbers) or len(numbers[0]) == len(numbers[1]):
            return {}
        mine, theirs = (
            [self._numbered(side, number, node.inside[number]) for number in numbers[side]]
            for side, node in enumerate((one, other))
        )
        if len(mine) < len(theirs):
            pairs = [(mine[i], theirs[j]) for i, j in enumerate(_places(mine, theirs))]
        else:
            pairs = [(mine[j], theirs[i]) for i, j in enumerate(_places(theirs, mine))]
        stayed = [(each, another) for each in mine for another in theirs if each.number == another.number]
        if _sum(pairs)[:2] <= _sum(stayed)[:2]:
            return {}
        return {**dict.fromkeys(numbers[0], ""), **{each.number: another.number for each, another in pairs}}

    def _numbered(self, side: int, number: str, node: _Node) -> _Numbered:
        inside = {}
        waiting = [("", node)]
        while waiting:
            place, each = waiting.pop()
            waiting += [(f"{place}.{name}", below) for name, below in each.inside.items()]
            if each.path in self._networks[side]:
                inside[place] = self._networks[side][each.path]
        labels = frozenset(self._contents.label(item) for item in parameters_of(inside)) - {None}
        return _Numbered(number, labels, frozenset((place, layer.kind) for place, layer in inside.items()))


def _sum(pairs: Iterable[tuple[_Numbered, _Numbered]]) -> _Score:
    total = 0, 0, 0
    for one, other in pairs:
        total = _added(total, one.score(other))
    return total


def _added(one: _Score, other: _Score) -> _Score:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _places(shorter: Sequence[_Numbered], longer: Sequence[_Numbered]) -> list[int]:
    """The places in the longer list of all of the shorter one, in order, with the highest sum of scores."""
    extra = len(longer) - len(shorter)
    # The highest sum so far if at most so many were inserted before, and the places, the last one first.
    best: list[tuple[_Score, Any]] = [((0, 0, 0), None)] * (extra + 1)
    for index, one in enumerate(shorter):
        for inserted, (total, places) in enumerate(best):
            place = index + inserted
            best[inserted] = _added(total, one.score(longer[place])), (place, places)
            if inserted and best[inserted - 1][0] >= best[inserted][0]:
                best[inserted] = best[inserted - 1]
    found = []
    places = best[-1][1]
    while places is not None:
        place, places = places
        found.append(place)
    return found[::-1]
