"""The calls of one run, with where in the module tree each of them stands; and the pairs of calls of two runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from probe.common.align.calls import KeyedCall
from probe.common.dump.naming import ParsedName, parse, record_name
from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.common.dump.reading.sources import Tree

OF_PARAMETERS = ("parameter:", "gradient:")
"""The beginnings of makers that are a parameter or its gradient."""


class Found:
    """The pairs of calls so far, by their numbers."""

    def __init__(self) -> None:
        self.partner: dict[int, int] = {}
        self.back: dict[int, int] = {}

    def add(self, one: int, other: int) -> None:
        """Pair two calls, if neither has a partner yet."""
        if one not in self.partner and other not in self.back:
            self.partner[one], self.back[other] = other, one

    def has(self, number: int, call: int) -> bool:
        """True if a call of a side has a partner."""
        return call in (self.back if number else self.partner)


class Side:
    """The calls of one run.

    Args:
        calls: the calls in order.
        tree: the call around each of them; ``None`` without construct.json.
        framework: the framework of the run.
    """

    def __init__(self, calls: Sequence[KeyedCall], tree: Tree | None, framework: str) -> None:
        self.calls, self.framework = calls, framework
        self.tree: Tree = tree or {}
        self.parsed: list[ParsedName | None] = [parse(call.record.name) for call in calls]
        self.index = {call.record.name: number for number, call in enumerate(calls)}

    def of_direction(self, direction: str) -> Iterator[tuple[int, ParsedName]]:
        """The calls in one direction, in order."""
        for number, parsed in enumerate(self.parsed):
            if parsed is not None and parsed.direction == direction:
                yield number, parsed

    @cached_property
    def modules(self) -> dict[str, dict[str, list[int]]]:
        """The calls of modules by path and direction, in order."""
        found: dict[str, dict[str, list[int]]] = {}
        for number, parsed in enumerate(self.parsed):
            if parsed is not None and parsed.is_module:
                found.setdefault(path_of(parsed.base), {}).setdefault(parsed.direction, []).append(number)
        return found

    def around(self, name: str) -> Iterator[str]:
        """The calls around a call, innermost first."""
        above = self.tree.get(name)
        while above:
            yield above
            above = self.tree.get(above)

    def other_way(self, number: int, direction: str) -> int | None:
        """The forward or backward call that belongs to a call."""
        parsed = self.parsed[number]
        return None if parsed is None else self.index.get(record_name(parsed._replace(direction=direction)))

    def number_of_call(self, number: int) -> int:
        """The number of times that the function or module was called before."""
        parsed = self.parsed[number]
        return 0 if parsed is None else parsed.number

    def result(self, number: int) -> Item | None:
        """The first tensor that a call returned."""
        return next((item for item in self.calls[number].items if item.state == OUTPUT and item.is_tensor), None)

    def given(self, number: int) -> list[Item]:
        """The tensors that a call took."""
        return [item for item in self.calls[number].items if item.state == INPUT and item.is_tensor]


def path_of(base: str) -> str:
    """The path of a module; of a model that is one layer its class, since nothing is the top."""
    parts = base.split(".")
    return ".".join(parts[1:-1]) or parts[-1]
