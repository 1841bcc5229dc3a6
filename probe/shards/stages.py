"""The stages of a pipeline as the one model that they are: layers numbered on, calls in the order of that model.

A stage numbers its layers and its calls of APIs from 0 on. Layers get the numbers that follow those of the stage
before, and calls of APIs are numbered anew in the order in which one process would have made them: the forward pass of
a micro batch through all stages, then its backward pass through all stages, then the next micro batch.

A module that several stages call, such as the block that holds the layers, is one module with the layers of all stages
inside: it takes what the first stage took and returns what the last one returned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.common.dump.naming import (
    BACKWARD,
    FORWARD,
    ParsedName,
    function_name,
    is_gradients,
    is_module,
    parse,
    record_name,
)
from probe.common.dump.reading import flattening
from probe.shards.part import Calls
from probe.shards.split import numbers

_NUMBER = re.compile(r"\d+\Z")
_STATES = {"input": ("input_args", "input", "input_kwargs"), "output": ("output",)}


@dataclass
class _Call:
    """A call of the merged model."""

    name: str
    places: list[tuple[int, int, str]]
    """Place in the pipeline, stage, and name there; several of a module that several stages call."""
    children: list[_Call] = field(default_factory=list)
    order: tuple[float, ...] = ()
    is_in_tree: bool = True


def merge_stages(stages: Sequence[Calls], ranks: Sequence[Sequence[int]], vpp: int) -> Calls:
    """The calls of all stages as one.

    Args:
        stages: in the order of the pipeline.
        ranks: those of each stage.
        vpp: how many chunks of layers each stage holds; the model is a list of them then.
    """
    if len(stages) == 1:
        return stages[0]
    return _Pipeline(stages, ranks, vpp).merged()


class _Pipeline:
    def __init__(self, stages: Sequence[Calls], ranks: Sequence[Sequence[int]], vpp: int) -> None:
        self._stages = stages
        self._ranks = ranks
        self._vpp = vpp
        self._offsets = self._layer_offsets()
        self._notes = [note for stage in stages for note in stage.notes]

    def merged(self) -> Calls:
        top = self._forest()
        names = self._numbered(top)
        return self._calls(top, names)

    def _place(self, stage: int, parsed: ParsedName) -> int:
        """How many chunks of layers the data went through before it comes to a module."""
        chunk = int(parsed.base.split(".")[1]) if self._vpp > 1 and _has_chunk(parsed.base) else 0
        return chunk * len(self._stages) + stage

    def _layer_offsets(self) -> dict[tuple[str, int], int]:
        """How many layers of a list come before those of each place in the pipeline."""
        found: dict[str, dict[int, set[int]]] = {}
        for stage, calls in enumerate(self._stages):
            for name in (*calls.tree, *calls.records):
                parsed = parse(name) if is_module(name) else None
                layer = None if parsed is None else self._layer(parsed.base)
                if parsed is not None and layer is not None:
                    above, number, _ = layer
                    found.setdefault(above, {}).setdefault(self._place(stage, parsed), set()).add(number)
        offsets: dict[tuple[str, int], int] = {}
        for above, of_places in found.items():
            everything = [number for layers in of_places.values() for number in layers]
            # Stages that number their layers as the whole model does have no number in common.
            counts_on = len(of_places) > 1 and len(set(everything)) < len(everything)
            before = 0
            for place, layers in sorted(of_places.items()):
                offsets[above, place] = before if counts_on else 0
                before += max(layers) + 1
        return offsets

    def _layer(self, base: str) -> tuple[str, int, str] | None:
        """The list a module is in, its number there, and what follows; the list of chunks is none."""
        parts = base.split(".")
        first = 2 if self._is_list(base) else 1
        for position in range(first, len(parts) - 1):
            if _NUMBER.match(parts[position]):
                return ".".join(parts[first:position]), int(parts[position]), ".".join(parts[position + 1 :])
        return None

    def _is_list(self, base: str) -> bool:
        """Whether the model was given as a list, so that a number comes first."""
        # Of a model that is nothing but a sequence of layers that number is the one of a layer.
        return _has_chunk(base) and (self._vpp > 1 or (base.split(".")[1] == "0" and base.count(".") > 2))

    def _module_name(self, stage: int, parsed: ParsedName) -> str:
        parts = parsed.base.split(".")
        first = parts[:1]
        if self._is_list(parsed.base):
            first.append("0")
        layer = self._layer(parsed.base)
        if layer is None:
            return record_name(parsed._replace(base=".".join([*first, *parts[len(first) :]])))
        above, number, rest = layer
        number += self._offsets[above, self._place(stage, parsed)]
        return record_name(parsed._replace(base=".".join([*first, *filter(None, [above]), str(number), rest])))

    def _forest(self) -> list[_Call]:
        """The calls that are inside of no other, each with those inside of it, in the order of one process."""
        modules: dict[str, _Call] = {}
        top: list[_Call] = []
        made: list[dict[str, _Call]] = []
        for stage, calls in enumerate(self._stages):
            of_stage: dict[str, _Call] = {}
            made.append(of_stage)
            outer = self._top_order(stage)
            for name in (*calls.tree, *(name for name in calls.records if name not in calls.tree)):
                if is_gradients(name):
                    continue
                parent = calls.tree.get(name)
                parent = parent if parent in calls.tree else None
                order = outer.get(name)
                place = int(order[-1]) if order else self._place_of(stage, name)
                parsed = parse(name) if is_module(name) else None
                merged_name = name if parsed is None else self._module_name(stage, parsed)
                call = modules.get(merged_name) if parsed is not None else None
                if call is not None:
                    call.places.append((place, stage, name))
                    of_stage[name] = call
                    if order is not None and call in top:
                        call.order = min(call.order, order[:-1])
                    continue
                call = of_stage[name] = _Call(merged_name, [(place, stage, name)], is_in_tree=name in calls.tree)
                if parsed is not None:
                    modules[merged_name] = call
                if parent is None or parent not in of_stage:
                    call.order = (order or (float("inf"), 0.0, 0.0, 0.0, 0.0))[:-1]
                    top.append(call)
                else:
                    of_stage[parent].children.append(call)
        self._leave_copies(modules)
        for call in modules.values():
            sign = -1 if _direction(call.name) == BACKWARD else 1
            call.children.sort(key=lambda child, sign=sign: sign * child.places[0][0])  # type: ignore[misc]
        return sorted(top, key=lambda call: call.order)

    def _place_of(self, stage: int, name: str) -> int:
        """The place in the pipeline of a call, by the module around it."""
        tree, seen = self._stages[stage].tree, 0
        around: str | None = name
        while around is not None and not is_module(around) and seen < len(tree):
            around, seen = tree.get(around), seen + 1
        parsed = parse(around) if around is not None else None
        return stage if parsed is None else self._place(stage, parsed)

    def _leave_copies(self, modules: dict[str, _Call]) -> None:
        """Keep the calls of one stage of a module that every stage has for itself, such as a table of positions."""
        for call in modules.values():
            call.places.sort()
            stages = {stage for _, stage, _ in call.places}
            if len(stages) == 1 and len(call.places) == 1:
                continue
            inside = [child for child in _inside(call) if is_module(child.name)]
            if any(len(child.places) < len(call.places) for child in inside):
                continue
            kept = call.places[0] if _direction(call.name) != BACKWARD else call.places[-1]
            if len(call.places) > 1:
                call.places = [kept]
                call.children = [child for child in call.children if _of_place(child, kept)]
                which = numbers(self._ranks[kept[1]])
                self._notes.append(f"{call.name} is called by several stages: it is shown as on rank {which}.")

    def _top_order(self, stage: int) -> dict[str, tuple[float, ...]]:
        """When one process would make the calls that are inside of no other: micro batch, direction, place; and place.

        An API belongs to what is called before it in the forward pass, and to what follows in the backward pass, or to
        what is before it where that alone is of the same micro batch.
        """
        calls = self._stages[stage]
        top = [name for name in calls.tree if calls.tree[name] not in calls.tree]
        top += [name for name in calls.records if name not in calls.tree]
        counts = Counter(
            parsed.base for parsed in map(parse, top) if parsed and parsed.is_module and parsed.direction == FORWARD
        )
        batches = min(counts.values(), default=1)
        anchors: list[tuple[float, float, float] | None] = [self._anchor(stage, name, counts, batches) for name in top]
        found: dict[str, tuple[float, ...]] = {}
        for position, name in enumerate(top):
            batch = found.get(self._outermost(stage, name), (None,))[0] if _direction(name) == BACKWARD else None
            anchor = anchors[position] or self._neighbour(name, anchors, position, stage, batch)
            place = abs(int(anchor[2]))
            found[name] = (*anchor, float(stage if anchor[1] == 0 else -stage), float(position), float(place))
        return found

    def _anchor(self, stage: int, name: str, counts: Counter[str], batches: int) -> tuple[float, float, float] | None:
        parsed = parse(name) if is_module(name) else None
        if parsed is None or parsed.direction not in (FORWARD, BACKWARD):
            return None
        count = max(counts.get(parsed.base, batches), 1)
        place = self._place(stage, parsed)
        is_backward = parsed.direction == BACKWARD
        return parsed.number * batches // count, float(is_backward), float(-place if is_backward else place)

    def _outermost(self, stage: int, name: str) -> str:
        """The outermost call around the forward call that belongs to a backward one."""
        parsed, tree = parse(name), self._stages[stage].tree
        around = "" if parsed is None else record_name(parsed._replace(direction=FORWARD))
        for _ in range(len(tree)):
            parent = tree.get(around)
            if parent is None or parent not in tree:
                break
            around = parent
        return around

    def _neighbour(
        self,
        name: str,
        anchors: Sequence[tuple[float, float, float] | None],
        position: int,
        stage: int,
        batch: float | None,
    ) -> tuple[float, float, float]:
        before = next((anchor for anchor in reversed(anchors[:position]) if anchor is not None), None)
        after = next((anchor for anchor in anchors[position:] if anchor is not None), None)
        is_backward = _direction(name) == BACKWARD
        if before is None and after is None:
            return 0.0, float(is_backward), float(-stage if is_backward else stage)
        if after is None:
            # What follows the last pass, such as the norm of all gradients, is made once all stages are done.
            assert before is not None
            is_of_pass = is_backward or before[1] == 0 or self._does(stage, name, "send")
            return before if is_of_pass else (float("inf"), 2.0, float(stage))
        # A stage receives for what follows, and sends what it computed before.
        if before is None or (self._does(stage, name, "recv") and not self._does(stage, name, "send")):
            return after
        if batch is not None and before[:2] == (batch, 1.0) != after[:2]:
            return before
        is_of_forward_pass = before[1] == 0 and not is_backward
        return before if is_of_forward_pass or self._does(stage, name, "send") else after

    def _does(self, stage: int, name: str, what: str) -> bool:
        """Whether a call sends or receives, alone or in a batch."""
        if "batch" not in name:
            return what in function_name(name)
        record = self._stages[stage].records.get(name, {})
        return any(what in str(item.peer[0]) for item in flattening.flatten(name, record) if item.peer is not None)

    def _numbered(self, top: Iterable[_Call]) -> dict[tuple[int, str], str]:
        """The merged name of each call of each stage; APIs are numbered in the order of the merged calls."""
        names: dict[tuple[int, str], str] = {}
        next_number: Counter[str] = Counter()
        given: dict[tuple[int, str, int], int] = {}
        waiting: list[_Call] = []
        for call in _walk(top):
            parsed = None if is_module(call.name) else parse(call.name)
            if parsed is None:
                names.update(((stage, name), call.name) for _, stage, name in call.places)
            elif parsed.direction == FORWARD:
                key = (call.places[0][1], parsed.base, parsed.number)
                given[key] = next_number[parsed.base]
                next_number[parsed.base] += 1
                waiting.append(call)
            else:
                waiting.append(call)
        for call in waiting:
            parsed = parse(call.name)
            assert parsed is not None
            _, stage, name = call.places[0]
            number = given.get((stage, parsed.base, parsed.number))
            if number is None:
                number = given[stage, parsed.base, parsed.number] = next_number[parsed.base]
                next_number[parsed.base] += 1
            call.name = names[stage, name] = record_name(parsed._replace(number=number))
        return names

    def _calls(self, top: Sequence[_Call], names: dict[tuple[int, str], str]) -> Calls:
        merged = Calls({}, {}, {}, {}, notes=self._notes)
        around: dict[int, str] = {}
        for call in _walk(top):
            for child in call.children:
                around[id(child)] = call.name
            if call.is_in_tree:
                merged.tree[call.name] = around.get(id(call))
        gradients = self._gradients()
        for call in _ended(top):
            self._add_record(merged, call)
            for _, stage, name in call.places:
                for of_gradients in gradients.pop((stage, name), ()):
                    self._add_record(merged, of_gradients)
        return merged

    def _gradients(self) -> dict[tuple[int, str], list[_Call]]:
        """The records of gradients, which are no calls, by the stage and the record that they stand behind."""
        found: dict[tuple[int, str], list[_Call]] = {}
        for stage, calls in enumerate(self._stages):
            before = ""
            for name in calls.records:
                if not is_gradients(name):
                    before = name
                    continue
                parsed = parse(name)
                merged_name = name if parsed is None else self._module_name(stage, parsed)
                found.setdefault((stage, before), []).append(_Call(merged_name, [(0, stage, name)]))
        return found

    def _add_record(self, merged: Calls, call: _Call) -> None:
        places = call.places
        for _, stage, name in places:
            calls = self._stages[stage]
            merged.origins.setdefault(call.name, []).extend(calls.origins.get(name, []))
            if name in calls.stacks:
                merged.stacks.setdefault(call.name, calls.stacks[name])
        there = [(stage, name) for _, stage, name in places if name in self._stages[stage].records]
        if not there:
            return
        # In the backward pass the last stage is the first one.
        first, last = (there[0], there[-1]) if _direction(call.name) != BACKWARD else (there[-1], there[0])
        merged.records[call.name] = self._fields(first, last)
        for stage, name in there:
            for item, how in self._stages[stage].items.items():
                state = item[len(name) + 1 :].partition(".")[0] if item.startswith(f"{name}.") else ""
                source = last if state == "output" else first
                if state and (stage, name) == source:
                    merged.items[call.name + item[len(name) :]] = how
        if first != last:
            taken, returned = (numbers(self._ranks[stage]) for stage, _ in (first, last))
            merged.sentences[call.name] = [
                f"The inputs are those of rank {taken}, the outputs those of rank {returned}: "
                f"{len(there)} parts of the pipeline make this call together."
            ]

    def _fields(self, first: tuple[int, str], last: tuple[int, str]) -> dict[str, Any]:
        of_first, of_last = (self._stages[stage].records[name] for stage, name in (first, last))
        fields = {key: value for key, value in of_first.items() if key not in _STATES["output"]}
        fields.update({key: of_last[key] for key in _STATES["output"] if key in of_last})
        return fields


def _has_chunk(base: str) -> bool:
    parts = base.split(".")
    return len(parts) > 1 and _NUMBER.match(parts[1]) is not None


def _direction(name: str) -> str:
    parsed = parse(name)
    return "" if parsed is None else parsed.direction


def _of_place(call: _Call, place: tuple[int, int, str]) -> bool:
    return any(other[:2] == place[:2] for other in call.places)


def _inside(call: _Call) -> Iterable[_Call]:
    walked = _walk([call])
    next(iter(walked))
    return walked


def _walk(top: Iterable[_Call]) -> Iterable[_Call]:
    """Every call before those inside of it."""
    ahead = list(reversed(list(top)))
    while ahead:
        call = ahead.pop()
        yield call
        ahead += reversed(call.children)


def _ended(top: Iterable[_Call]) -> Iterable[_Call]:
    """Every call behind those inside of it."""
    ahead = [(call, False) for call in reversed(list(top))]
    while ahead:
        call, is_done = ahead.pop()
        if is_done or not call.children:
            yield call
            continue
        ahead.append((call, True))
        ahead += ((child, False) for child in reversed(call.children))
