"""Dumps of models as deep as wanted: a layer of a recorded model that is there again and again.

What such a layer makes has other statistics each time, so that files have the size of real ones: every number is that
of the recorded layer times a factor, the same for a tensor wherever it stands and on both sides of a comparison. Needs
nothing but Python.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]

_NUMBER = re.compile(r"\.([0-9]+)\.(forward|backward)\Z")
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_LAYER = "Module.model.layers.1."
NODES_OF_LAYER = 125
"""Of the recorded Llama; two layers and the rest are 303 nodes."""
_NODES_OF_TWO = 303


class Recorded(NamedTuple):
    """The files of a recorded dump with two layers."""

    dump: Record
    tree: dict[str, str | None]
    stacks: dict[str, Any]


def recorded(folder: Path) -> Recorded:
    """Read a recorded dump."""
    files = (folder / f"{name}.json" for name in ("dump", "construct", "stack"))
    return Recorded(*(json.loads(file.read_text("utf-8")) for file in files))


def layers_of(nodes: int) -> int:
    """How many layers so many nodes take."""
    return max(2, 2 + round((nodes - _NODES_OF_TWO) / NODES_OF_LAYER))


class _Names:
    """The names of a model of `layers` layers, made of those of one with two."""

    def __init__(self, tree: Mapping[str, str | None], layers: int) -> None:
        self._layers = layers
        self._of_layer = {name for name in tree if any(each.startswith(_LAYER) for each in _around(name, tree))}
        self._ranges: dict[str, tuple[int, int]] = {}
        for name in self._of_layer:
            found = _NUMBER.search(name)
            if found is not None and not name.startswith("Module."):
                api, number = name[: found.start()], int(found[1])
                low, high = self._ranges.get(api, (number, number))
                self._ranges[api] = min(low, number), max(high, number)

    def expanded(self, names: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        """Each name of the deep model, the recorded one behind it, and the number of its layer; -1 outside of them."""
        run: list[str] = []
        for name in names:
            if name in self._of_layer or name.startswith(_LAYER):
                run.append(name)
                continue
            yield from self._again(run)
            run = []
            yield self.of(name, -1), name, -1
        yield from self._again(run)

    def _again(self, names: list[str]) -> Iterator[tuple[str, str, int]]:
        forward = [name for name in names if ".forward" in name]
        others = [name for name in names if ".forward" not in name]
        for layer in range(1, self._layers):
            yield from ((self.of(name, layer), name, layer) for name in forward)
        for layer in reversed(range(1, self._layers)):
            yield from ((self.of(name, layer), name, layer) for name in others)

    def of(self, name: str, layer: int) -> str:
        """The name of a call of the layer, or of one outside of the layers that are repeated."""
        if name.startswith("Module."):
            return name.replace(_LAYER, f"Module.model.layers.{layer}.") if layer >= 1 else name
        found = _NUMBER.search(name)
        if found is None:
            return name
        api, number = name[: found.start()], int(found[1])
        low, high = self._ranges.get(api, (0, -1))
        if layer >= 1:
            number += (layer - 1) * (high - low + 1)
        elif number > high >= low:
            number += (self._layers - 2) * (high - low + 1)
        return f"{api}.{number}.{found[2]}"


def _around(name: str, tree: Mapping[str, str | None]) -> Iterator[str]:
    above: str | None = name
    while above is not None:
        yield above
        above = tree.get(above)


class _Numbers:
    """Statistics times a factor that depends on the layer and on what the recorded tensor is."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def changed(self, value: Any, clean: Any, layer: int) -> Any:
        """`value` with its statistics changed as those of `clean` would be."""
        if isinstance(value, dict):
            if not isinstance(clean, dict):
                clean = value
            found = {key: self.changed(each, clean.get(key, each), layer) for key, each in value.items()}
            if "Max" in value:
                factor = self._factor(tuple(clean.get(key) for key in _STATISTICS), layer)
                found.update({key: _times(value[key], factor) for key in _STATISTICS if key in value})
            return found
        if isinstance(value, list):
            others = clean if isinstance(clean, list) and len(clean) == len(value) else value
            return [self.changed(each, other, layer) for each, other in zip(value, others)]
        return value

    def _factor(self, statistics: tuple[Any, ...], layer: int) -> float:
        return random.Random(f"{self._seed} {layer} {statistics}").uniform(0.5, 2.0)


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) > 1e37:
        return value
    # Statistics are float32 numbers.
    return struct.unpack("f", struct.pack("f", value * factor))[0]


def write_deep(
    folder: Path, clean: Recorded, layers: int, faulty: Recorded | None = None, at: int = 0, seed: int = 0
) -> None:
    """A dump of `layers` layers.

    Args:
        folder: where it goes.
        clean: what is repeated.
        layers: how many layers there are, from 2.
        faulty: the same model with a fault in its second layer, whose numbers stand from layer `at` on.
        at: the first layer with the fault.
        seed: other numbers in all layers.
    """
    names, numbers = _Names(clean.tree, layers), _Numbers(seed)
    data: dict[str, Record] = {}
    for new, old, layer in names.expanded(clean.dump["data"]):
        here = clean.dump["data"][old]
        is_after = layer >= at or (layer < 0 and not old.startswith("Module.model.layers.0."))
        source = faulty.dump["data"].get(old, here) if faulty is not None and is_after else here
        # The layers that are there once keep what was recorded.
        data[new] = numbers.changed(source, here, layer) if layer > 0 else source
    tree: dict[str, str | None] = {}
    for new, old, layer in names.expanded(clean.tree):
        above = clean.tree[old]
        is_repeated = above is not None and (above.startswith(_LAYER) or not above.startswith("Module."))
        tree[new] = above and names.of(above, layer if is_repeated else -1)
    stacks = {}
    for key, (calls, frames) in clean.stacks.items():
        again = [new for new, _, _ in names.expanded(calls)]
        stacks[key] = [again, frames]
    folder.mkdir(parents=True)
    for name, content in (("dump", {**clean.dump, "data": data}), ("construct", tree), ("stack", stacks)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
