"""The layers of two programs for one network that correspond, whatever they are called.

In this order: layers whose parameters hold the same values; layers that return the same values; layers around others
that hold most of each other's counterparts; between two pairs layers of one kind and size, in order. What
holds or returns values that are elsewhere in the other run is no counterpart, and a fused layer has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from probe.common.align.call_order import ascending, refined
from probe.common.align.contents import Contents, Label
from probe.common.align.operations import layer_kind
from probe.common.align.side import Side
from probe.common.dump.naming import FORWARD
from probe.common.dump.reading.records import PARAMETERS, Item
from probe.common.numerics.error_bounds import extent

Partners = dict[str, str]
"""Paths of layers of the target and of the golden side."""


@dataclass(frozen=True)
class Layer:
    """The facts on a layer, from the first of its calls."""

    path: str
    class_name: str
    parameters: tuple[Item, ...] = ()
    result: Optional[Item] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    is_leaf: bool = True

    @property
    def kind(self) -> str | None:
        """The class in neutral words; ``None`` where neither framework brings it."""
        return layer_kind(self.class_name)

    @property
    def name(self) -> str:
        """The last part of the path that is no number."""
        return next((part for part in reversed(self.path.split(".")) if not part.isdigit()), "")

    @property
    def size(self) -> int:
        """The number of elements of the largest parameter."""
        return max((extent(item.shape).elements for item in self.parameters), default=0)

    @property
    def above(self) -> list[str]:
        """The paths around it, innermost first."""
        parts = self.path.split(".")
        return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


Network = dict[str, Layer]
"""The layers of one side by their paths, in the order in which their first calls ended."""


def network(side: Side) -> Network:
    """The layers of one side."""
    inner = {above for path in side.modules for above in Layer(path, "").above}
    found: Network = {}
    for path, calls in side.modules.items():
        if FORWARD not in calls:
            continue
        first = calls[FORWARD][0]
        parsed = side.parsed[first]
        class_name = "" if parsed is None else parsed.base.rpartition(".")[2]
        parameters = tuple(item for item in side.calls[first].items if item.state == PARAMETERS and item.is_tensor)
        found[path] = Layer(path, class_name, parameters, side.result(first), path not in inner)
    return found


def paired_layers(sides: tuple[Side, Side], results: Contents) -> dict[str, tuple[str, str]]:
    """The layers that correspond: the golden path of each path of the target, and how the two were paired.

    Args:
        sides: the two runs.
        results: the contents of what their calls return.
    """
    search = _Search(network(sides[0]), network(sides[1]), results)
    search.pair("parameters", search.weights, _kind, _is_leaf)
    search.pair("value", lambda layer: search.result(layer) if layer.is_leaf else None, _kind, _is_leaf)
    search.around()
    search.pair("value", search.result, _kind, _is_leaf, _holds_any)
    search.pair("parameters", search.weights, _holds_any)
    search.between()
    search.around()
    return search.found


class _Search:
    """The pairs that were found so far."""

    def __init__(self, target: Network, golden: Network, results: Contents) -> None:
        self.target, self.golden, self._results = target, golden, results
        self._parameters = Contents(parameters_of(target), parameters_of(golden), in_any_order=True)
        self.found: dict[str, tuple[str, str]] = {}
        self.back: Partners = {}
        self._contradicted: set[Hashable] = set()

    def weights(self, layer: Layer) -> Label | None:
        """The content of the largest parameter that the other side has, too."""
        return self._parameters.label(self._weight(layer))

    def _weight(self, layer: Layer) -> Item | None:
        known = (item for item in layer.parameters if self._parameters.label(item) is not None)
        return max(known, key=lambda item: extent(item.shape).elements, default=None)

    def result(self, layer: Layer) -> Label | None:
        """The content that the first call of the layer returns."""
        return self._results.label(layer.result)

    def pair(
        self, how: str, key: Callable[[Layer], Hashable | None], *ways: Callable[[Layer], Hashable | None]
    ) -> None:
        """Pair layers that have one key, as far as each of `ways` in turn finds them equal, in order."""
        groups: dict[Hashable, tuple[list[Layer], list[Layer]]] = {}
        for number, layers in enumerate((self.target, self.golden)):
            for layer in layers.values():
                own = None if self._is_paired(number, layer) else key(layer)
                if own is not None:
                    groups.setdefault(own, ([], []))[number].append(layer)
        for mine, theirs in groups.values():
            for way in ways if mine and theirs else ():
                self._in_order(how, mine, theirs, way)

    def _is_paired(self, number: int, layer: Layer) -> bool:
        return layer.path in (self.back if number else self.found)

    def between(self) -> None:
        """Pair layers of one kind and size that stand between the same two pairs."""
        leaves = [[layer for layer in side.values() if layer.is_leaf] for side in (self.target, self.golden)]
        for way in (_kind_and_size, _place):
            self._in_order("order", leaves[0], leaves[1], way, anchored=True)

    def _in_order(
        self,
        how: str,
        mine: Sequence[Layer],
        theirs: Sequence[Layer],
        way: Callable[[Layer], Hashable | None],
        anchored: bool = False,
    ) -> None:
        anchors: list[tuple[int, int]] = []
        if anchored:
            position = {layer.path: index for index, layer in enumerate(theirs)}
            pairs = ((i, self.found.get(layer.path)) for i, layer in enumerate(mine))
            anchors = ascending((i, position[pair[0]]) for i, pair in pairs if pair and pair[0] in position)
        keys = [
            [None if self._is_paired(number, layer) else way(layer) for layer in side]
            for number, side in enumerate((mine, theirs))
        ]
        for i, j in refined(anchors, keys[0], keys[1], as_many=how == "order"):
            one, other = mine[i], theirs[j]
            free = one.path not in self.found and other.path not in self.back
            if free and (how == "parameters" or not self._contradict(one, other)):
                self._add(one, other, how)

    def _add(self, one: Layer, other: Layer, how: str) -> None:
        self.found[one.path] = other.path, how
        self.back[other.path] = one.path

    def _contradict(self, mine: Layer, theirs: Layer) -> bool:
        """True if what the two are, or what they hold or return, speaks against a pair."""
        if None not in (mine.kind, theirs.kind) and mine.kind != theirs.kind:
            return True
        if mine.size != theirs.size and mine.is_leaf and theirs.is_leaf:
            return True
        if mine.is_leaf and theirs.is_leaf and not mine.size and _sizes(mine) != _sizes(theirs):
            return True
        if self._parameters.contradict(self._weight(mine), self._weight(theirs)):
            return True
        return self._return_other_values(mine, theirs) or _relation(mine, theirs) in self._contradicted

    def _return_other_values(self, mine: Layer, theirs: Layer) -> bool:
        return self._results.contradict(mine.result, theirs.result)

    def around(self) -> None:
        """Pair layers that hold most of each other's counterparts."""
        votes: Counter[tuple[str, str]] = Counter()
        held, other_held = Counter[str](), Counter[str]()
        for path, (other, _) in self.found.items():
            mine = [above for above in self.target[path].above if above in self.target and above not in self.found]
            theirs = [above for above in self.golden[other].above if above in self.golden and above not in self.back]
            held.update(mine)
            other_held.update(theirs)
            votes.update((one, another) for one in mine for another in theirs)
        # What returns other values where the runs agree does so where they have diverged, too.
        layers = [(self.target[path], self.golden[other]) for path, other in votes]
        self._contradicted.update(_relation(*pair) for pair in layers if self._return_other_values(*pair))
        ranked = []
        for (path, other), number in votes.items():
            if 2 * number > held[path] and 2 * number > other_held[other]:
                share = 2 * number / (held[path] + other_held[other])
                one, another = self.target[path], self.golden[other]
                results = self.result(one), self.result(another)
                is_same = None not in results and results[0] == results[1]
                ranked.append((-is_same, -share, path, other))
        for _, _, path, other in sorted(ranked):
            one, another = self.target[path], self.golden[other]
            if path not in self.found and other not in self.back and not self._contradict(one, another):
                self._add(one, another, "inside")


def parameters_of(side: Network) -> Iterable[Item]:
    """The parameters of all layers."""
    return (item for layer in side.values() for item in layer.parameters)


def _kind(layer: Layer) -> Hashable | None:
    return layer.kind or layer.class_name, layer.is_leaf


def _kind_and_size(layer: Layer) -> Hashable | None:
    return _kind(layer), _sizes(layer)


def _sizes(layer: Layer) -> Hashable | None:
    return layer.size, None if layer.result is None else extent(layer.result.shape).elements


def _place(layer: Layer) -> Hashable | None:
    """The sizes of what a layer holds and returns, unless it hands on what it takes, as a dropout may."""
    kind = layer.kind or ""
    return None if kind == "identity" or kind.startswith("dropout") else _sizes(layer)


def _holds_any(layer: Layer) -> Hashable | None:
    """Equal of layers with parameters and of layers around others: an adapter around a layer is one."""
    return () if layer.size or not layer.is_leaf else None


def _is_leaf(layer: Layer) -> Hashable | None:
    return layer.is_leaf


def _relation(mine: Layer, theirs: Layer) -> Hashable:
    return mine.class_name, mine.name, theirs.class_name, theirs.name
