"""The user's choices for a graph."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from probe.common.dump.naming import BACKWARD, FORWARD, ParsedName, parse
from probe.common.errors import MsprobeException
from probe.compare.evidence import Options
from probe.graph.graph import Graph
from probe.graph.pairing import ManualPair
from probe.graph.rules import PROBE_GRAPH, GraphRules

AUTO, OFF = "auto", "off"

Call = tuple[str, int]
"""A module and the number of its call."""


def add_micro_steps(graph: Graph, wanted: str | int = AUTO) -> int:
    """Say in `graph` which micro step each node belongs to; returns how many there are.

    Args:
        graph: its `micro_steps` are written, and its `notes`.
        wanted: ``auto``; ``off`` for one; or how many there are.

    Raises:
        MsprobeException: `wanted` is nothing of the kind, or the model is not run a multiple of so many times.
    """
    count = _asked_for(wanted)
    if count == 1:
        return 1
    outermost = _Outermost(graph)
    if count == 0:
        count = outermost.micro_steps()
        problem = outermost.problem(count) if count > 1 else ""
        if problem:
            graph.notes.append(
                f"{graph.path}: the calls that run {count} times are not the same each time ({problem}), so they are "
                "shown as one micro step. Give the number of micro steps with --micro_step."
            )
            return 1
    else:
        outermost.check(count)
    outermost.number(count)
    return count


def _asked_for(wanted: str | int) -> int:
    """The number of micro steps that were asked for; 0 where that is to be found out."""
    if wanted == AUTO:
        return 0
    if wanted == OFF:
        return 1
    text = str(wanted)
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise MsprobeException(f"--micro_step is {wanted!r}; allowed: {AUTO}, {OFF}, or the number of micro steps.")


class _Outermost:
    """The calls of modules that no other module is around."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._top = graph.children[-1]
        self._parsed = {node: parse(graph.names[node]) for node in self._top}
        self._calls: dict[str, list[int]] = defaultdict(list)
        """The numbers of the forward calls of each module, in order."""
        for _, parsed in self._modules():
            if parsed.direction == FORWARD:
                self._calls[parsed.base].append(parsed.number)

    def _modules(self) -> list[tuple[int, ParsedName]]:
        found = ((node, self._parsed[node]) for node in self._top)
        return [(node, parsed) for node, parsed in found if parsed is not None and parsed.is_module]

    def micro_steps(self) -> int:
        """The number of times that all of them are run, which is 1 where one of them is run once."""
        return math.gcd(*map(len, self._calls.values())) or 1

    def check(self, count: int) -> None:
        """Raise an error unless the first of them is run `count` times, or twice `count` times, and so on."""
        base, calls = next(iter(self._calls.items()), ("", []))
        if not calls or len(calls) % count:
            called = f"{base} is called {len(calls)} times" if base else "no module is called"
            raise MsprobeException(
                f"--micro_step is {count}, and in {self._graph.path} {called}, which is no multiple of {count}."
            )

    def problem(self, count: int) -> str:
        """The reason why the parts that `count` micro steps have are not alike; empty where they are."""
        steps = self._steps(count)
        backward = [steps[node] for node, parsed in self._modules() if parsed.direction == BACKWARD]
        if backward != sorted(backward):
            # Such are two inputs of one loss: their backward passes run in the other order, as one.
            return "the backward passes run in another order"
        parts: list[Counter[str]] = [Counter() for _ in range(count)]
        for node, step in steps.items():
            parts[step].update(self._modules_inside(node))
        for number, part in enumerate(parts):
            if part != parts[0]:
                name = min((part - parts[0]) + (parts[0] - part))
                return f"{name} runs {parts[0][name]} times in the first and {part[name]} times in number {number}"
        return ""

    def number(self, count: int) -> None:
        """Write the micro step of each node, of which there are `count`."""
        steps = self._steps(count)
        graph, step = self._graph, 0
        for node in self._top:
            parsed = self._parsed[node]
            step = steps.get(node, count - 1 if parsed is not None and parsed.is_module else step)
            for inside in range(graph.firsts[node], node + 1):
                graph.micro_steps[inside] = step

    def _steps(self, count: int) -> dict[int, int]:
        """The micro step of each of these calls."""
        step_of: dict[Call, int] = {}
        for base, numbers in self._calls.items():
            for index, number in enumerate(numbers):
                step_of[base, number] = index * count // len(numbers)
        backwards: Counter[str] = Counter()
        found = {}
        for node, parsed in self._modules():
            call = parsed.base, parsed.number
            if parsed.direction == FORWARD:
                found[node] = step_of[call]
            elif parsed.direction == BACKWARD:
                # Without its forward call it is counted by itself.
                found[node] = step_of.get(call, min(backwards[parsed.base], count - 1))
                backwards[parsed.base] += 1
        return found

    def _modules_inside(self, node: int) -> list[str]:
        """The modules that a call runs, itself among them, forward and backward; gradients that add up are none."""
        parsed = map(parse, self._graph.names[self._graph.firsts[node] : node + 1])
        return [
            f"{each.base} {each.direction}"
            for each in parsed
            if each is not None and each.is_module and each.direction in (FORWARD, BACKWARD)
        ]


# --- options


HTML, JSON, MODEL_EXPLORER = "html", "json", "model-explorer"
"""The forms that can be written; the database is msProbe's."""


@dataclass(frozen=True)
class GraphOptions:
    """The way in which dumps are shown.

    Args:
        compare: how they are matched and judged.
        pairs: nodes that belong together whatever else is found.
        rules: whose statuses nodes get.
        overflow: look for numbers that are too large, even where none is infinite.
        micro_step: ``auto``, ``off`` or the number of micro steps.
        strip_paths: beginnings of paths that are not shown; ``auto`` and ``all`` as `Prefixes` says.
        tensor_log: a log line for each pair of tensors, with its metrics.
        progress_log: a log line for each comparison that is done.

    Raises:
        MsprobeException: the rules have no place for the pairs or the options that are given.
    """

    compare: Options = field(default_factory=Options)
    pairs: tuple[ManualPair, ...] = ()
    rules: GraphRules = PROBE_GRAPH
    overflow: bool = False
    micro_step: str = AUTO
    strip_paths: tuple[str, ...] = ()
    tensor_log: bool = False
    progress_log: bool = False

    def __post_init__(self) -> None:
        self.rules.check(self.compare, self.pairs)
