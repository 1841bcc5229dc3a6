"""The layers of two networks that correspond when their names do not say so.

Layers without layers inside, and those that a framework brings, are taken in the order in which they first ran. Of
these correspond, in this order,

1. those whose path ends alike as no other path does, if class and shapes do not contradict,
2. those with the same values in parameters and result, in parameters alone, or in result alone (`same_values`), as long
   as class and name of the others would fit as well,
3. those of the same class, shape of weight and shape of output, then of the same shapes, then of the same class, as
   `patience_diff.align` finds them: what occurs more often on one side than on the other stays alone.

A layer with others inside corresponds to the one that holds most of the counterparts of its own. Levels that only one
side has hold the same as the level below or above them; of several such candidates the one is taken that is most alike
in class, name and shapes. Inside of two layers that correspond, what is left is looked at again by name and in any
order; where several are alike in everything, equal names decide, then equal weights, then the order.

What is uncertain stays without counterpart. The outcome depends on nothing but the two dumps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Optional

from probe.common.align import patience_diff
from probe.common.align.calls import KeyedCall
from probe.common.align.layers.module_paths import Path, ScopedRecords
from probe.common.align.layers.same_values import Label, SameValues
from probe.common.align.name_mapping import PARAMETER_NAMES
from probe.common.align.operations import is_container, layer_kind
from probe.common.dump.naming import FORWARD
from probe.common.dump.reading.items import Shape
from probe.common.dump.reading.records import INPUT, OUTPUT, PARAMETERS, Item
from probe.common.numerics.error_bounds import extent

Partners = dict[Path, Path]
"""Layers of the target and of the golden side."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_WEIGHT = "weight"


@dataclass(frozen=True)
class Layer:
    """The facts on a layer from the first of its calls."""

    path: Path
    class_name: str
    kind: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The class in neutral words; ``None`` where neither framework brings it."""
    weight: Optional[Shape] = None  # noqa: UP045
    """Shape of the parameter of this name, ones left out."""
    inputs: Optional[Shape] = None  # noqa: UP045
    """Shape of the first."""
    output: Optional[Shape] = None  # noqa: UP045
    parameters: tuple[Item, ...] = ()
    result: Optional[Item] = None  # noqa: UP045
    """The first tensor that it returned."""

    @property
    def name(self) -> str:
        """The last part of the path that is no number."""
        return next((part for part in reversed(self.path) if not part.isdigit()), "")


@dataclass
class Network:
    """The layers of one side."""

    layers: dict[Path, Layer] = field(default_factory=dict)
    """The layers in the order in which they first ran."""
    leaves: list[Path] = field(default_factory=list)

    def above(self, path: Path) -> Iterable[Path]:
        """The layers around one, innermost first."""
        return (path[:end] for end in range(len(path) - 1, 0, -1) if path[:end] in self.layers)


def network(side: ScopedRecords) -> Network:
    """The layers of `side`."""
    first: dict[Path, KeyedCall] = {}
    for wanted in (FORWARD, None):
        for name, (path, direction, module) in side.scopes.items():
            if module and wanted in (direction, None):
                first.setdefault(path, side.calls[name])
    found = Network()
    for path, call in first.items():
        found.layers[path] = _layer(path, side.classes[path], call)
    inner = {above for path in found.layers for above in found.above(path)}
    opaque = {path for path, layer in found.layers.items() if layer.kind and not is_container(layer.class_name)}
    for path in found.layers:
        if (path not in inner or path in opaque) and not any(above in opaque for above in found.above(path)):
            found.leaves.append(path)
    return found


def _layer(path: Path, class_name: str, call: KeyedCall) -> Layer:
    shapes: dict[str, Shape | None] = {}
    weight = None
    parameters: list[Item] = []
    for item in call.items:
        if item.state == PARAMETERS:
            parameters.append(item)
            name = item.name.rpartition(".")[2]
            if PARAMETER_NAMES.get(name, name) == _WEIGHT:
                weight = _squeezed(item.shape)
        else:
            shapes.setdefault(item.state, _squeezed(item.shape))
    kind = layer_kind(class_name)
    result = next((item for item in call.items if item.state == OUTPUT and item.is_tensor), None)
    given, returned = shapes.get(INPUT), shapes.get(OUTPUT)
    return Layer(path, class_name, kind, weight, given, returned, tuple(parameters), result)


@cache
def _squeezed(shape: Shape | None) -> Shape | None:
    # A convolution in one dimension may be one in two.
    return None if shape is None else tuple(size for size in shape if size != 1)


def compatible(mine: Layer, theirs: Layer) -> bool:
    """True if nothing that the frameworks bring contradicts."""
    if mine.kind is None or theirs.kind is None:
        return True
    return mine.kind == theirs.kind


def align(target: Network, golden: Network, same: LayerValues) -> Partners:
    """The layers that correspond."""
    leaves = _leaves(target, golden, same)
    partners = _containers(leaves, target, golden, same)
    partners.update(_agreeing(leaves, partners, target, golden))
    # A layer may be inside of a block of one side, and behind its counterpart on the other.
    partners.update(_of_equal_weights(leaves, partners, target, golden, same))
    _complete(partners, target, golden, same)
    _settle(partners, target, golden, same)
    _by_result(partners, target, golden, same)
    return partners


class LayerValues:
    """The layers of two networks that hold the same values."""

    def __init__(self, target: Network, golden: Network) -> None:
        values = SameValues(*map(_tensors, (target, golden)))
        self._contradicted: set[Hashable] = set()
        layers = [*target.layers.values(), *golden.layers.values()]
        self._results = {id(layer): values.label(layer.result) for layer in layers}
        self._weights = {id(layer): tuple(map(values.label, layer.parameters)) for layer in layers}

    def result(self, layer: Layer) -> Label | None:
        """The returned value of the layer."""
        return self._results[id(layer)]

    def weights(self, layer: Layer) -> tuple[Label | None, ...] | None:
        """The values that its parameters hold; ``None`` where the other network has nothing like them."""
        labels = self._weights[id(layer)]
        return None if labels.count(None) == len(labels) else labels

    def weights_and_result(self, layer: Layer) -> Hashable:
        """Both, as far as there are both."""
        both = self.weights(layer), self.result(layer)
        return None if None in both else both

    def result_of_kind(self, layer: Layer) -> Hashable:
        """The returned value of a layer of this kind."""
        result = self.result(layer)
        return None if result is None else (layer.kind or layer.class_name, result)

    def result_alone(self, layer: Layer) -> Hashable:
        """The returned value of a layer without parameters, which may be of another class on the other side."""
        return None if layer.parameters else self.result(layer)

    def fit(self, mine: Layer, theirs: Layer) -> bool:
        """True if nothing speaks against two layers: what they are, how large they are, what they hold."""
        if mine.parameters and theirs.parameters and _size(mine) != _size(theirs):
            # Of a fused layer, say.
            return False
        if self._have_other_results(mine, theirs) or self._have_other_weights(mine, theirs):
            return False
        if self._shared(mine, theirs):
            return True
        known = self.result(mine) is not None
        if _is_bare(mine, theirs) and not (known and self.result(mine) == self.result(theirs)):
            return False
        return (known or _relation(mine, theirs) not in self._contradicted) and compatible(mine, theirs)

    def learn(self, pairs: Iterable[tuple[Layer, Layer]]) -> None:
        """Remember by class and name which layers do not correspond where the runs agree.

        They do not where the runs have diverged either, and values say nothing any more.
        """
        for mine, theirs in pairs:
            if self._have_other_results(mine, theirs):
                self._contradicted.add(_relation(mine, theirs))

    def contradict(self, mine: Layer, theirs: Layer) -> bool:
        """True if what two layers of one name hold is elsewhere in the other network: its names have shifted."""
        if mine.parameters and theirs.parameters:
            return self._have_other_weights(mine, theirs)
        return self._have_other_results(mine, theirs)

    def _have_other_results(self, mine: Layer, theirs: Layer) -> bool:
        results = self.result(mine), self.result(theirs)
        return None not in results and results[0] != results[1]

    def _have_other_weights(self, mine: Layer, theirs: Layer) -> bool:
        return bool(self.weights(mine) and self.weights(theirs) and not self._shared(mine, theirs))

    def share_no_parameter(self, mine: Layer, theirs: Layer) -> bool:
        """True if both layers have parameters, and none of one is one of the other."""
        return bool(mine.parameters and theirs.parameters and not self._shared(mine, theirs))

    def _shared(self, mine: Layer, theirs: Layer) -> set[Label | None]:
        """The values that both hold in a parameter."""
        return {*(self.weights(mine) or ())} & {*(self.weights(theirs) or ())} - {None}


def _size(layer: Layer) -> int:
    return max(extent(item.shape).elements for item in layer.parameters)


def _is_bare(mine: Layer, theirs: Layer) -> bool:
    """True if one has parameters, and the other is a layer of a framework that has none, such as a dropout.

    An identity may stand where the other side has a layer.
    """
    bare = [other for one, other in ((mine, theirs), (theirs, mine)) if one.parameters and not other.parameters]
    return any(each.kind not in (None, layer_kind("Identity")) for each in bare)


def _relation(mine: Layer, theirs: Layer) -> Hashable:
    return mine.class_name, mine.name, theirs.class_name, theirs.name


def _tensors(network: Network) -> Iterator[Item]:
    for layer in network.layers.values():
        yield from layer.parameters
        if layer.result is not None:
            yield layer.result


def _leaves(target: Network, golden: Network, same: LayerValues) -> Partners:
    mine = [target.layers[path] for path in target.leaves]
    theirs = [golden.layers[path] for path in golden.leaves]
    ends, other_ends = _ends(target.leaves), _ends(golden.leaves)
    common = {end for end, index in ends.items() if index is not None and other_ends.get(end) is not None}
    keys: list[list[Path | None]] = []
    for layers, indexes in ((mine, ends), (theirs, other_ends)):
        keys.append([_longest(layer.path, index, indexes, common) for index, layer in enumerate(layers)])
    there = {end: theirs[index] for index, end in enumerate(keys[1]) if end is not None}
    named = [
        end
        if end is not None and end in there and _alike(layer, there[end]) and not same.contradict(layer, there[end])
        else None
        for layer, end in zip(mine, keys[0])
    ]
    pairs = patience_diff.align(named, keys[1])
    certain = set(pairs)
    by_value = (same.weights_and_result, same.weights, same.result_of_kind, same.result_alone)
    for key in (*by_value, _exact, _shaped, _kind):
        pairs = patience_diff.refine(pairs, [key(layer) for layer in mine], [key(layer) for layer in theirs])
    return {mine[i].path: theirs[j].path for i, j in pairs if (i, j) in certain or same.fit(mine[i], theirs[j])}


def _of_equal_weights(
    leaves: Partners, partners: Partners, target: Network, golden: Network, same: LayerValues
) -> Partners:
    """The pairs of `leaves` without counterparts so far that hold the same in all of their parameters."""
    taken = set(partners.values())
    found: Partners = {}
    for mine, theirs in leaves.items():
        weights = same.weights(target.layers[mine]) if mine not in partners and theirs not in taken else None
        if weights and None not in weights and weights == same.weights(golden.layers[theirs]):
            found[mine] = theirs
    return found


def _ends(paths: list[Path]) -> dict[Path, int | None]:
    """Every end of every path, and the only one that ends so or ``None``."""
    found: dict[Path, int | None] = {}
    for index, path in enumerate(paths):
        for start in range(len(path)):
            found[path[start:]] = None if path[start:] in found else index
    return found


def _longest(path: Path, index: int, ends: dict[Path, int | None], common: set[Path]) -> Path | None:
    fits = (path[start:] for start in range(len(path)))
    return next((end for end in fits if end in common and ends[end] == index and not end[0].isdigit()), None)


def _alike(mine: Layer, theirs: Layer) -> bool:
    shapes = ((mine.weight, theirs.weight), (mine.output, theirs.output))
    return compatible(mine, theirs) and (mine.path == theirs.path or all(one == other for one, other in shapes))


def _exact(layer: Layer) -> Hashable:
    return layer.kind or layer.class_name, layer.weight, layer.output


def _shaped(layer: Layer) -> Hashable:
    return None if layer.output is None else (layer.weight, layer.output)


def _kind(layer: Layer) -> Hashable:
    return layer.kind or layer.class_name


def _containers(leaves: Partners, target: Network, golden: Network, same: LayerValues) -> Partners:
    """Layers around others that hold most of each other's counterparts."""
    votes: Counter[tuple[Path, Path]] = Counter()
    held, other_held = Counter[Path](), Counter[Path]()
    for mine, theirs in leaves.items():
        around, other_around = list(target.above(mine)), list(golden.above(theirs))
        held.update(around)
        other_held.update(other_around)
        votes.update((one, other) for one in around for other in other_around)
    ranked = []
    same.learn((target.layers[mine], golden.layers[theirs]) for mine, theirs in votes)
    for (mine, theirs), number in votes.items():
        if 2 * number > held[mine] and 2 * number > other_held[theirs]:
            share = 2 * number / (held[mine] + other_held[theirs])
            ranked.append((-share, -_likeness(target.layers[mine], golden.layers[theirs]), mine, theirs))
    found: Partners = {}
    taken: set[Path] = set()
    for _, _, mine, theirs in sorted(ranked):
        if mine in found or theirs in taken or not same.fit(target.layers[mine], golden.layers[theirs]):
            continue
        if _compatible_containers(target.layers[mine], golden.layers[theirs], same):
            found[mine] = theirs
            taken.add(theirs)
    return _agreeing(found, found, target, golden)


def _compatible_containers(one: Layer, other: Layer, same: LayerValues) -> bool:
    differ = one.output is not None and other.output is not None and one.output != other.output
    if differ and same.result(one) is not None:
        # Tokens in one dimension and in two are the same tokens.
        differ = same.result(one) != same.result(other)
    return compatible(one, other) and not (differ and _likeness(one, other) < 1)


def _likeness(mine: Layer, theirs: Layer) -> float:
    same = 3 * (mine.class_name == theirs.class_name) + 2 * (mine.name == theirs.name)
    same += 2 * (mine.output is not None and mine.output == theirs.output)
    same += mine.inputs is not None and mine.inputs == theirs.inputs
    words, others = (set(map(str.lower, _WORDS.findall(layer.class_name))) for layer in (mine, theirs))
    return same + len(words & others) / max(len(words | others), 1)


def _agreeing(pairs: Partners, partners: Partners, target: Network, golden: Network) -> Partners:
    """`pairs` that lie inside of the same layers on both sides."""
    back = {theirs: mine for mine, theirs in partners.items()}
    found: Partners = {}
    for mine, theirs in pairs.items():
        around = next((above for above in target.above(mine) if above in partners), ())
        other = next((above for above in golden.above(theirs) if above in back), ())
        inside = theirs[: len(partners.get(around, ()))] == partners.get(around, ())
        if inside and mine[: len(back.get(other, ()))] == back.get(other, ()):
            found[mine] = theirs
    return found


def _complete(partners: Partners, target: Network, golden: Network, same: LayerValues) -> None:
    """Pair what is left inside of two layers that correspond, in any order."""
    back = {theirs: mine for mine, theirs in partners.items()}
    rest = _by_parent((path for path in target.leaves if path not in partners), target, partners)
    other_rest = _by_parent((path for path in golden.leaves if path not in back), golden, back)
    for parent, paths in rest.items():
        mine = [target.layers[path] for path in paths]
        theirs = [golden.layers[path] for path in other_rest.get(partners.get(parent, ()), ())]
        for key in (_named, same.weights_and_result, same.weights, same.result_of_kind, _exact, _shaped, _kind):
            pairs = patience_diff.equally_many(
                ((index, key(layer)) for index, layer in enumerate(mine)),
                ((index, key(layer)) for index, layer in enumerate(theirs)),
            )
            pairs = [
                (i, j)
                for i, j in pairs
                if same.fit(mine[i], theirs[j]) or (key is _named and compatible(mine[i], theirs[j]))
            ]
            partners.update({mine[i].path: theirs[j].path for i, j in pairs})
            used, taken = {i for i, _ in pairs}, {j for _, j in pairs}
            mine = [layer for index, layer in enumerate(mine) if index not in used]
            theirs = [layer for index, layer in enumerate(theirs) if index not in taken]


def _by_result(partners: Partners, target: Network, golden: Network, same: LayerValues) -> None:
    """Pair what is left by what it returns: a block of functions and one of layers.

    Blocks of two classes that do correspond where the runs agree are paired in order where they have diverged.
    """
    back = set(partners.values())
    mine = [layer for path, layer in target.layers.items() if path not in partners]
    theirs = [layer for path, layer in golden.layers.items() if path not in back]
    pairs = patience_diff.align(list(map(same.result, mine)), list(map(same.result, theirs)))
    pairs = [(i, j) for i, j in pairs if same.fit(mine[i], theirs[j])]
    classes = {(mine[i].class_name, theirs[j].class_name) for i, j in pairs}
    used, taken = {i for i, _ in pairs}, {j for _, j in pairs}
    in_order: list[tuple[int, int]] = []
    for one, other in classes:
        rest = [i for i, layer in enumerate(mine) if layer.class_name == one and i not in used]
        other_rest = [j for j, layer in enumerate(theirs) if layer.class_name == other and j not in taken]
        if len(rest) == len(other_rest):
            in_order += zip(rest, other_rest)
    by_chance = [(i, j) for i, j in pairs if same.share_no_parameter(mine[i], theirs[j])]
    partners.update({mine[i].path: theirs[j].path for i, j in pairs if (i, j) not in by_chance})
    # The order says less than the layers around, since an identity may be called in several of them. So do results of
    # layers with other parameters, which in a short type look equal by chance.
    in_order = [(i, j) for i, j in in_order if same.fit(mine[i], theirs[j])]
    likely = {mine[i].path: theirs[j].path for i, j in (*by_chance, *in_order)}
    partners.update(_agreeing(likely, partners, target, golden))


def _named(layer: Layer) -> Hashable:
    return None if layer.path[-1].isdigit() else layer.path[-1]


def _by_parent(paths: Iterable[Path], side: Network, known: Partners) -> dict[Path, list[Path]]:
    found: dict[Path, list[Path]] = {}
    for path in paths:
        found.setdefault(next((above for above in side.above(path) if above in known), ()), []).append(path)
    return found


def _settle(partners: Partners, target: Network, golden: Network, same: LayerValues) -> None:
    """Exchange partners among layers that are alike, where their names or weights say more than their order."""
    groups: dict[tuple[Path, Hashable], list[Path]] = {}
    for mine in target.leaves:
        if mine in partners:
            parent = next((above for above in target.above(mine) if above in partners), ())
            groups.setdefault((parent, _exact(target.layers[mine])), []).append(mine)
    order = {path: index for index, path in enumerate(golden.leaves)}
    for paths in groups.values():
        theirs = sorted((partners[path] for path in paths), key=order.__getitem__)
        if len(paths) > 1 and len({_exact(golden.layers[path]) for path in theirs}) == 1:
            alike = [target.layers[path] for path in paths], [golden.layers[path] for path in theirs]
            partners.update(_exchanged(*alike, same))


def _exchanged(mine: list[Layer], theirs: list[Layer], same: LayerValues) -> Partners:
    found: Partners = {}
    for key in (_named, same.weights_and_result, same.weights):
        keys = [Counter(map(key, layers)) for layers in (mine, theirs)]
        paths = {key(layer): layer.path for layer in theirs}
        for layer in mine:
            own = key(layer)
            if own is not None and keys[0][own] == keys[1][own] == 1:
                found[layer.path] = paths[own]
        taken = set(found.values())
        mine = [layer for layer in mine if layer.path not in found]
        theirs = [layer for layer in theirs if layer.path not in taken]
    found.update(zip((layer.path for layer in mine), (layer.path for layer in theirs)))
    return found
