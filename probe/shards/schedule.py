"""The time at which one process would make the calls of all stages of a pipeline.

One process makes the forward pass of a micro batch through all stages, then its backward pass through all stages, then
the next micro batch.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from probe.common.dump.naming import BACKWARD, FORWARD, ParsedName, function_name, is_module, parse, record_name
from probe.common.dump.reading import items
from probe.shards.split import Calls

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


# --- schedule


_FORWARD_PASS, _BACKWARD_PASS, _BEHIND = range(3)


class _Pass(NamedTuple):
    """The part of a pass that a call belongs to; in the order in which one process makes these."""

    batch: float
    """The micro batch; infinity behind the last one."""
    kind: int
    """`_FORWARD_PASS`, `_BACKWARD_PASS` or `_BEHIND` both."""
    way: int
    """The position of the data on its way through the chunks: the index of the chunk, and less than 0 on the way back.
    """

    def is_backward_of(self, batch: float) -> bool:
        return (self.batch, self.kind) == (batch, _BACKWARD_PASS)


class Moment(NamedTuple):
    """The time at which one process would make a call; moments are in order."""

    batch: float
    kind: int
    way: int
    stage: int
    """Less than 0 but in the forward pass: the last stage is the first one then."""
    position: int
    """Among the calls of its stage that are inside of no other."""

    @property
    def chunk_index(self) -> int:
        """The index of the chunk in the pipeline."""
        return abs(self.way)


UNKNOWN = Moment(math.inf, _FORWARD_PASS, 0, 0, 0)
"""The moment of a call if nobody knows when it was made: behind all micro batches."""


class Schedule:
    """Finds the moments of the calls of a stage.

    Args:
        calls: those of the stage.
        stage: its number.
        layers: the layers of all stages.
    """

    def __init__(self, calls: Calls, stage: int, layers: Layers) -> None:
        self._calls = calls
        self._stage = stage
        self._layers = layers
        tree = calls.tree
        self._top = [name for name in tree if tree[name] not in tree]
        self._top += [name for name in calls.records if name not in tree]
        parsed = [each for each in map(parse, self._top) if each is not None and each.is_module]
        self._counts = Counter(each.base for each in parsed if each.direction == FORWARD)
        """The number of times that each module at the top is called."""
        self._batches = min(self._counts.values(), default=1)

    def moments(self) -> dict[str, Moment]:
        """The moment of each call that is inside of no other.

        An API belongs to what is called before it in the forward pass, and to what follows in the backward pass, or to
        what is before it where that alone is of the same micro batch.
        """
        passes = [self._pass_of_module(name) for name in self._top]
        found: dict[str, Moment] = {}
        for position, name in enumerate(self._top):
            forward = found.get(self._outermost(name)) if direction_of(name) == BACKWARD else None
            batch = None if forward is None else forward.batch
            belongs_to = passes[position] or self._pass_beside(name, passes, position, batch)
            stage = self._stage if belongs_to.kind == _FORWARD_PASS else -self._stage
            found[name] = Moment(*belongs_to, stage, position)
        return found

    def _pass_of_module(self, name: str) -> _Pass | None:
        parsed = parse(name) if is_module(name) else None
        if parsed is None or parsed.direction not in (FORWARD, BACKWARD):
            return None
        count = max(self._counts.get(parsed.base, self._batches), 1)
        chunk_index, batch = self._layers.chunk_index(self._stage, parsed), parsed.number * self._batches // count
        if parsed.direction == BACKWARD:
            return _Pass(batch, _BACKWARD_PASS, -chunk_index)
        return _Pass(batch, _FORWARD_PASS, chunk_index)

    def _outermost(self, name: str) -> str:
        """The outermost call around the forward call that belongs to a backward one."""
        parsed, tree = parse(name), self._calls.tree
        around = "" if parsed is None else record_name(parsed._replace(direction=FORWARD))
        for _ in range(len(tree)):
            parent = tree.get(around)
            if parent is None or parent not in tree:
                break
            around = parent
        return around

    def _pass_beside(self, name: str, passes: Sequence[_Pass | None], position: int, batch: float | None) -> _Pass:
        """The pass of the module before or after a call of an API.

        Args:
            batch: the micro batch of the forward call, of a backward one.
        """
        before = next((each for each in reversed(passes[:position]) if each is not None), None)
        after = next((each for each in passes[position:] if each is not None), None)
        is_backward = direction_of(name) == BACKWARD
        if before is None and after is None:
            if is_backward:
                return _Pass(0, _BACKWARD_PASS, -self._stage)
            return _Pass(0, _FORWARD_PASS, self._stage)
        if after is None:
            # What follows the last pass, such as the norm of all gradients, is made once all stages are done.
            assert before is not None
            is_of_pass = is_backward or before.kind == _FORWARD_PASS or self._does(name, "send")
            return before if is_of_pass else _Pass(math.inf, _BEHIND, self._stage)
        # A stage receives for what follows, and sends what it computed before.
        if before is None or (self._does(name, "recv") and not self._does(name, "send")):
            return after
        if batch is not None and before.is_backward_of(batch) and not after.is_backward_of(batch):
            return before
        is_of_forward_pass = before.kind == _FORWARD_PASS and not is_backward
        return before if is_of_forward_pass or self._does(name, "send") else after

    def _does(self, name: str, what: str) -> bool:
        """True if a call sends or receives, alone or in a batch."""
        if "batch" not in name:
            return what in function_name(name)
        record = self._calls.records.get(name, {})
        return any(what in str(item.peer[0]) for item in items.flatten(name, record) if item.peer is not None)


def direction_of(name: str) -> str:
    """The direction of a record; empty of what has none."""
    parsed = parse(name)
    return "" if parsed is None else parsed.direction
