"""The mark that tells calls outside of modules from each other where one run makes more of them than the other.

An optimizer calls the same functions for every parameter. A parameter more shifts all calls after it, and nothing in
their names tells. What they are given does: the parameter that it is, or at least the shapes of its tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Optional

from probe.common.align.layers.siblings import Renumbered
from probe.common.dump.naming import PARAMETERS_GRAD, is_module, parse
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.dump.reading.sources import Tree

_INPUTS = (INPUT, PARAMETERS)

Marks = Mapping[str, Hashable]
"""A mark of records; others have none."""


@dataclass(frozen=True)
class MarkedRecords:
    """The records of one run in order, their items, and the tree of its calls."""

    order: Sequence[str]
    items: Mapping[str, Sequence[Item]]
    tree: Optional[Tree]  # noqa: UP045 (evaluated, on Python 3.9 too)
    moved: Renumbered = field(default_factory=Renumbered)
    """Layers that have other numbers on the other side."""

    @cached_property
    def outside(self) -> dict[tuple[str, str, str], list[str]]:
        """The calls outside of modules, by what is around them, their function and their direction."""
        found: dict[tuple[str, str, str], list[str]] = {}
        around = (self.tree or {}).get
        for name in self.order:
            parent = around(name) or ""
            parsed = None if is_module(parent) else parse(name)
            if parsed is not None and not parsed.is_module:
                found.setdefault((parent, parsed.base, parsed.direction), []).append(name)
        return found

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The parameter that a call outside of modules is for, of each that gets it or what is made of it."""
        known = self._recorded_parameters()
        found: dict[str, str] = {}
        outside = {name for names in self.outside.values() for name in names}
        for record in self.order:
            if record not in outside:
                continue
            items = [each for each in self.items.get(record, ()) if _is_evidence(each)]
            names = (known.get(_statistics(each)) for each in items if each.state in _INPUTS)
            name = next((name for name in names if name), None)
            if name is not None:
                found[record] = name
                for each in items:
                    _learn(known, each, name)
        return found

    def _recorded_parameters(self) -> dict[tuple[Any, ...], str]:
        """The names of parameters by the statistics of their values and of their gradients."""
        known: dict[tuple[Any, ...], str] = {}
        for record in self.order:
            parsed = parse(self.moved.record(record))
            if parsed is None or not parsed.is_module:
                continue
            path = parsed.base.rpartition(".")[0]
            for each in self.items.get(record, ()):
                if each.state in (PARAMETERS, PARAMETERS_GRAD) and _is_evidence(each):
                    own = each.name[len(record) + 1 :]
                    _learn(known, each, f"{path}.{own[len(PARAMETERS) + 1 :] if each.state == PARAMETERS else own}")
        return known

    def shapes(self, record: str) -> Hashable:
        """The shapes of what a call is given."""
        return tuple(each.shape for each in self.items.get(record, ()) if each.is_tensor and each.state in _INPUTS)

    def constants(self, record: str) -> Hashable:
        """The values of what a call is given that is all ones, or all zeros."""
        given = (each for each in self.items.get(record, ()) if each.is_tensor and each.state in _INPUTS)
        return tuple(None if _is_evidence(each) else each.max for each in given)


def marks(target: MarkedRecords, golden: MarkedRecords) -> tuple[Marks, Marks]:
    """Marks of both sides for the calls outside of modules of which one side makes more.

    What marks them has to be as often on that side as on the other at least, whichever it is: otherwise nobody knows
    whether it is other calls or the same with something else.
    """
    found: tuple[dict[str, Hashable], dict[str, Hashable]] = {}, {}
    ways: tuple[Callable[[MarkedRecords, str], Hashable], ...] = (_parameter, MarkedRecords.shapes)
    for key in target.outside.keys() & golden.outside.keys():
        sides = target.outside[key], golden.outside[key]
        if len(sides[0]) == len(sides[1]):
            continue
        for way in ways:
            mine, theirs = ([way(side, name) for name in names] for side, names in zip((target, golden), sides))
            if len({*mine, *theirs}) > 1 and _is_part(mine, theirs):
                for known, names, each in zip(found, sides, (mine, theirs)):
                    known.update(zip(names, each))
                break
    return found


def _parameter(side: MarkedRecords, record: str) -> Hashable:
    return side.parameters.get(record) or (side.shapes(record), side.constants(record))


def _is_part(mine: Sequence[Hashable], theirs: Sequence[Hashable]) -> bool:
    fewer, more = sorted((Counter(mine), Counter(theirs)), key=lambda each: sum(each.values()))
    return not fewer - more


def _is_evidence(item: Item) -> bool:
    """True if a tensor has values of its own; many are all zeros or all ones."""
    return item.is_tensor and (item.md5 is not None if item.max is None else item.max != item.min)


def _learn(known: dict[tuple[Any, ...], str], item: Item, name: str) -> None:
    """Keep whose values these are; nobody's where two have the same."""
    statistics = _statistics(item)
    if known.setdefault(statistics, name) != name:
        known[statistics] = ""


def _statistics(item: Item) -> tuple[Any, ...]:
    return item.shape, item.max, item.min, item.mean, item.norm, item.md5
