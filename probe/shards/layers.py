"""Layers of a pipeline with the numbers that they have in the one model that its stages are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from probe.common.dump.naming import ParsedName, is_module, parse, record_name
from probe.shards.part import Calls

_NUMBER = re.compile(r"\d+\Z")


class _ListedLayer(NamedTuple):
    """The place of a module in a list of layers."""

    of_list: str
    """The path of the list; empty where the model is one."""
    number: int
    rest: str
    """The path inside of the layer, and the class."""


class Layers:
    """Numbers the layers of all stages as one model does.

    Args:
        stages: in the order of the pipeline.
        vpp: how many chunks of layers each stage holds; the model is a list of them then.
    """

    def __init__(self, stages: Sequence[Calls], vpp: int) -> None:
        self._stages = stages
        self._vpp = vpp
        self._offsets = self._layer_offsets()

    def chunk_index(self, stage: int, parsed: ParsedName) -> int:
        """The number of chunks of layers that the data went through before it comes to a module."""
        chunk = int(parsed.base.split(".")[1]) if self._vpp > 1 and _has_chunk(parsed.base) else 0
        return chunk * len(self._stages) + stage

    def merged_name(self, stage: int, parsed: ParsedName) -> str:
        """The name of the record of a module in the merged model."""
        parts = parsed.base.split(".")
        first = parts[:1]
        if self._is_list(parsed.base):
            first.append("0")
        layer = self._layer(parsed.base)
        if layer is None:
            return record_name(parsed._replace(base=".".join([*first, *parts[len(first) :]])))
        number = layer.number + self._offsets[layer.of_list, self.chunk_index(stage, parsed)]
        inside = [*filter(None, [layer.of_list]), str(number), layer.rest]
        return record_name(parsed._replace(base=".".join([*first, *inside])))

    def _layer_offsets(self) -> dict[tuple[str, int], int]:
        """The number of layers of a list that come before those of each chunk in the pipeline, by list and chunk."""
        offsets: dict[tuple[str, int], int] = {}
        for of_list, by_chunk in self._layers_of_lists().items():
            everything = [number for layers in by_chunk.values() for number in layers]
            # Stages that number their layers as the whole model does have no number in common.
            counts_on = len(by_chunk) > 1 and len(set(everything)) < len(everything)
            before = 0
            for chunk_index, layers in sorted(by_chunk.items()):
                offsets[of_list, chunk_index] = before if counts_on else 0
                before += max(layers) + 1
        return offsets

    def _layers_of_lists(self) -> dict[str, dict[int, set[int]]]:
        """The numbers of the layers in each chunk of the pipeline, by list."""
        found: dict[str, dict[int, set[int]]] = {}
        for stage, calls in enumerate(self._stages):
            for name in (*calls.tree, *calls.records):
                parsed = parse(name) if is_module(name) else None
                layer = None if parsed is None else self._layer(parsed.base)
                if parsed is not None and layer is not None:
                    by_chunk = found.setdefault(layer.of_list, {})
                    by_chunk.setdefault(self.chunk_index(stage, parsed), set()).add(layer.number)
        return found

    def _layer(self, base: str) -> _ListedLayer | None:
        """The layer that a module is or is in; the list of chunks is none."""
        parts = base.split(".")
        first = 2 if self._is_list(base) else 1
        for position in range(first, len(parts) - 1):
            if _NUMBER.match(parts[position]):
                return _ListedLayer(
                    ".".join(parts[first:position]), int(parts[position]), ".".join(parts[position + 1 :])
                )  # fmt: skip
        return None

    def _is_list(self, base: str) -> bool:
        """True if the model was given as a list, so that a number comes first."""
        # Of a model that is nothing but a sequence of layers that number is the one of a layer.
        return _has_chunk(base) and (self._vpp > 1 or (base.split(".")[1] == "0" and base.count(".") > 2))


def _has_chunk(base: str) -> bool:
    parts = base.split(".")
    return len(parts) > 1 and _NUMBER.match(parts[1]) is not None
