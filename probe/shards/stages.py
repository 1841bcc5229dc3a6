"""The stages of a pipeline as the one model that they are: layers numbered on, calls in the order of that model.

A stage numbers its layers and its calls of APIs from 0 on. Layers get the numbers that follow those of the stage
before, and calls of APIs are numbered anew in the order in which one process would have made them: the forward pass of
a micro batch through all stages, then its backward pass through all stages, then the next micro batch.

A module that several stages call, such as the block that holds the layers, is one module with the layers of all stages
inside: it takes what the first stage took and returns what the last one returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from probe.common.dump.naming import BACKWARD, FORWARD, is_gradients, is_module, parse, record_name
from probe.common.ranges import ranges
from probe.shards.schedule import UNKNOWN, Layers, Moment, Schedule, direction_of
from probe.shards.split import Calls

_STATES = {"input": ("input_args", "input", "input_kwargs"), "output": ("output",)}


class _Part(NamedTuple):
    """A call as one stage made it."""

    chunk_index: int
    """In the pipeline."""
    stage: int
    name: str
    """The name in the stage."""


class _ApiCall(NamedTuple):
    """A call of an API as a stage numbers it, in whatever direction."""

    stage: int
    base: str
    number: int


@dataclass(eq=False)
class _MergedCall:
    """A call of the merged model."""

    name: str
    parts: list[_Part]
    """Several of a module that several stages call."""
    children: list[_MergedCall] = field(default_factory=list)
    moment: Moment = UNKNOWN
    """The time at which one process would make it, of a call that is inside of no other."""
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
        self._layers = Layers(stages, vpp)
        self._notes = [note for stage in stages for note in stage.notes]

    def merged(self) -> Calls:
        top = self._forest()
        self._number_apis(top)
        return self._calls(top)

    def _forest(self) -> list[_MergedCall]:
        """The calls that are inside of no other, each with those inside of it, in the order of one process."""
        modules: dict[str, _MergedCall] = {}
        top: list[_MergedCall] = []
        for stage in range(len(self._stages)):
            self._add_stage(stage, modules, top)
        self._leave_copies(modules)
        for call in modules.values():
            # The backward pass goes through the stages from the last to the first.
            sign = -1 if direction_of(call.name) == BACKWARD else 1
            call.children.sort(key=lambda child, sign=sign: sign * child.parts[0].chunk_index)  # type: ignore[misc]
        return sorted(top, key=lambda call: call.moment)

    def _add_stage(self, stage: int, modules: dict[str, _MergedCall], top: list[_MergedCall]) -> None:
        """Add the calls of a stage to `modules`, by their merged names, and to `top` those inside of no other."""
        calls = self._stages[stage]
        moments = Schedule(calls, stage, self._layers).moments()
        made: dict[str, _MergedCall] = {}
        for name in (*calls.tree, *(name for name in calls.records if name not in calls.tree)):
            if is_gradients(name):
                continue
            moment = moments.get(name)
            part = _Part(self._chunk_index(stage, name) if moment is None else moment.chunk_index, stage, name)
            parsed = parse(name) if is_module(name) else None
            merged_name = name if parsed is None else self._layers.merged_name(stage, parsed)
            call = modules.get(merged_name) if parsed is not None else None
            if call is not None:
                call.parts.append(part)
                made[name] = call
                if moment is not None and call in top:
                    call.moment = min(call.moment, moment)
                continue
            call = made[name] = _MergedCall(merged_name, [part], is_in_tree=name in calls.tree)
            if parsed is not None:
                modules[merged_name] = call
            around = made.get(calls.tree.get(name) or "")
            if around is None:
                call.moment = moment or UNKNOWN
                top.append(call)
            else:
                around.children.append(call)

    def _chunk_index(self, stage: int, name: str) -> int:
        """The index of the chunk of layers that a call is in, by the module around it."""
        tree, seen = self._stages[stage].tree, 0
        around: str | None = name
        while around is not None and not is_module(around) and seen < len(tree):
            around, seen = tree.get(around), seen + 1
        parsed = parse(around) if around is not None else None
        return stage if parsed is None else self._layers.chunk_index(stage, parsed)

    def _leave_copies(self, modules: dict[str, _MergedCall]) -> None:
        """Keep the calls of one stage of a module that every stage has for itself, such as a table of positions."""
        for call in modules.values():
            call.parts.sort()
            if len(call.parts) == 1:
                continue
            inside = [child for child in _inside(call) if is_module(child.name)]
            if any(len(child.parts) < len(call.parts) for child in inside):
                continue
            kept = call.parts[0] if direction_of(call.name) != BACKWARD else call.parts[-1]
            call.parts = [kept]
            call.children = [child for child in call.children if _is_beside(child, kept)]
            which = ranges(self._ranks[kept.stage])
            self._notes.append(f"{call.name} is called by several stages: it is shown as on rank {which}.")

    def _number_apis(self, top: Iterable[_MergedCall]) -> None:
        """Number the calls of APIs in the order of the merged calls; a backward call has the number of its forward."""
        apis = [(call, parsed) for call in _walk(top) if not is_module(call.name) and (parsed := parse(call.name))]
        # A forward call that is recorded gives the number, wherever its backward is.
        apis.sort(key=lambda api: api[1].direction != FORWARD)
        next_number: Counter[str] = Counter()
        given: dict[_ApiCall, int] = {}
        for call, parsed in apis:
            key = _ApiCall(call.parts[0].stage, parsed.base, parsed.number)
            if key not in given:
                given[key] = next_number[parsed.base]
                next_number[parsed.base] += 1
            call.name = record_name(parsed._replace(number=given[key]))

    def _calls(self, top: Sequence[_MergedCall]) -> Calls:
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
            for _, stage, name in call.parts:
                for of_gradients in gradients.pop((stage, name), ()):
                    self._add_record(merged, of_gradients)
        return merged

    def _gradients(self) -> dict[tuple[int, str], list[_MergedCall]]:
        """The records of gradients, which are no calls, by the stage and the record that they stand behind."""
        found: dict[tuple[int, str], list[_MergedCall]] = {}
        for stage, calls in enumerate(self._stages):
            before = ""
            for name in calls.records:
                if not is_gradients(name):
                    before = name
                    continue
                parsed = parse(name)
                merged_name = name if parsed is None else self._layers.merged_name(stage, parsed)
                found.setdefault((stage, before), []).append(_MergedCall(merged_name, [_Part(0, stage, name)]))
        return found

    def _add_record(self, merged: Calls, call: _MergedCall) -> None:
        parts = call.parts
        for _, stage, name in parts:
            calls = self._stages[stage]
            merged.origins.setdefault(call.name, []).extend(calls.origins.get(name, []))
            if name in calls.stacks:
                merged.stacks.setdefault(call.name, calls.stacks[name])
        there = [(stage, name) for _, stage, name in parts if name in self._stages[stage].records]
        if not there:
            return
        # In the backward pass the last stage is the first one.
        first, last = (there[0], there[-1]) if direction_of(call.name) != BACKWARD else (there[-1], there[0])
        merged.records[call.name] = self._fields(first, last)
        for stage, name in there:
            for item, how in self._stages[stage].items.items():
                state = item[len(name) + 1 :].partition(".")[0] if item.startswith(f"{name}.") else ""
                source = last if state == "output" else first
                if state and (stage, name) == source:
                    merged.items[call.name + item[len(name) :]] = how
        if first != last:
            taken, returned = (ranges(self._ranks[stage]) for stage, _ in (first, last))
            merged.sentences[call.name] = [
                f"The inputs are those of rank {taken}, the outputs those of rank {returned}: "
                f"{len(there)} parts of the pipeline make this call together."
            ]

    def _fields(self, first: tuple[int, str], last: tuple[int, str]) -> dict[str, Any]:
        of_first, of_last = (self._stages[stage].records[name] for stage, name in (first, last))
        fields = {key: value for key, value in of_first.items() if key not in _STATES["output"]}
        fields.update({key: of_last[key] for key in _STATES["output"] if key in of_last})
        return fields


def _is_beside(call: _MergedCall, part: _Part) -> bool:
    """True if a stage made a call in the same chunk as another one."""
    return any((other.chunk_index, other.stage) == (part.chunk_index, part.stage) for other in call.parts)


def _inside(call: _MergedCall) -> Iterable[_MergedCall]:
    walked = _walk([call])
    next(iter(walked))
    return walked


def _walk(top: Iterable[_MergedCall]) -> Iterable[_MergedCall]:
    """Every call before those inside of it."""
    ahead = list(reversed(list(top)))
    while ahead:
        call = ahead.pop()
        yield call
        ahead += reversed(call.children)


def _ended(top: Iterable[_MergedCall]) -> Iterable[_MergedCall]:
    """Every call behind those inside of it."""
    ahead = [(call, False) for call in reversed(list(top))]
    while ahead:
        call, is_done = ahead.pop()
        if is_done or not call.children:
            yield call
            continue
        ahead.append((call, True))
        ahead += ((child, False) for child in reversed(call.children))
