"""The layers of two programs for one network that correspond, whatever they are called.

In this order: layers whose parameters hold the same values; between two pairs layers of one size, in order;
layers around others that hold most of each other's counterparts. What returns values that are elsewhere in the other
run is no counterpart, and a fused layer has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from probe.common.align.call_order import Pairs, ascending, refined
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
    search.of_equal_parameters()
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

    def of_equal_parameters(self) -> None:
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
