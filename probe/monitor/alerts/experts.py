"""The rule over experts of a mixture: a router that sends every token to one of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from probe.monitor.alerts.rows import FamilyRows, Finding
from probe.monitor.alerts.tracks import size_of

ROUTER = "router_collapse"
COLLAPSED_STEPS = 8
"""Steps in a row in which one expert works. A guess: a small batch may go to one by chance now and then."""
LEAST_EXPERTS = 3
"""Experts of a mixture that is judged: one of two may be without tokens by chance. A guess."""
_SHARE = 1e-6
"""Share of the largest gradient below which an expert does nothing: rounding, or the tail of a softmax."""
_LOAD = 0.99
"""Rounding of the share of tokens of an expert that gets all of them. A guess."""
_EXPERT = re.compile(r"^(?P<group>.*?experts?)\.(?P<number>\d+)(?=\.|$)", re.IGNORECASE)


def expert_of(name: str) -> tuple[str, int] | None:
    """The mixture and the number of the expert in the name of a row.

    Example:
        >>> expert_of("layers.3.experts.7.up.weight")
        ('layers.3.experts', 7)
    """
    match = _EXPERT.match(name)
    return None if match is None else (match["group"], int(match["number"]))


class _Work(NamedTuple):
    """The part of the work that each expert of a mixture has in a step."""

    rows: FamilyRows
    row: int
    """A row of the expert that has most."""
    of_each: Mapping[int, float]


class RouterRule:
    """Mixtures in which one expert works alone, after several have worked."""

    def __init__(self) -> None:
        self._known: dict[str, set[int]] = {}
        self._several: dict[str, int] = {}
        self._alone: dict[str, tuple[int, int]] = {}
        """By mixture the first step and the number of those in which one expert works."""

    def look(self, families: Mapping[str, FamilyRows]) -> list[Finding]:
        """Findings of the step."""
        found = []
        mixtures = _loads(families) or _work(families)
        for name, work in mixtures.items():
            known = self._known.setdefault(name, set())
            known.update(work.of_each)
            largest = max(work.of_each.values(), default=0.0)
            active = [number for number, each in work.of_each.items() if each > _SHARE * largest]
            if len(active) != 1:
                self._several[name] = self._several.get(name, 0) + (len(active) > 1)
                self._alone.pop(name, None)
                continue
            if self._several.get(name, 0) < COLLAPSED_STEPS or len(known) < LEAST_EXPERTS:
                continue
            since, count = self._alone.get(name, (work.rows.step, 0))
            self._alone[name] = since, count + 1
            if count + 1 == COLLAPSED_STEPS:
                why = f"the router goes to one expert: {name}.{active[0]} works alone, and {len(known) - 1} do nothing"
                args = ROUTER, 1.0, "several experts with tokens, as before", why
                found.append(work.rows.finding(work.row, "experts", *args, since))
        return found


def _work(families: Mapping[str, FamilyRows]) -> dict[str, _Work]:
    """Gradients of the weights of experts, or else what goes into them."""
    gradients = families.get("grad_reduced") or families.get("grad_unreduced")
    found = {} if gradients is None else _of_rows(gradients, range(len(gradients.names)))
    activations = families.get("actv")
    if found or activations is None:
        return found
    inputs = [row for row, name in enumerate(activations.names) if ".input" in name]
    return _of_rows(activations, inputs)


def _of_rows(rows: FamilyRows, chosen: Sequence[int]) -> dict[str, _Work]:
    sizes = size_of(rows)
    works: dict[str, dict[int, float]] = {}
    most: dict[str, tuple[float, int]] = {}
    for row in chosen if sizes is not None else ():
        expert = expert_of(rows.names[row])
        if expert is None or sizes is None:
            continue
        group, number = expert
        is_there = rows.judged is None or rows.judged[row]
        size = float(sizes[row]) if is_there and sizes[row] == sizes[row] else 0.0
        of_each = works.setdefault(group, {})
        of_each[number] = max(of_each.get(number, 0.0), size)
        most[group] = max(most.get(group, (-1.0, 0)), (size, row))
    return {group: _Work(rows, most[group][1], of_each) for group, of_each in works.items()}


def _loads(families: Mapping[str, FamilyRows]) -> dict[str, _Work]:
    """Loads of experts as routers have been asked for them."""
    found: dict[str, _Work] = {}
    for family in ("moe_router_logit_hook", "moe_router_weight_hook"):
        rows = families.get(family)
        loads = None if rows is None else rows.column("load")
        if rows is None or loads is None:
            continue
        for row, name in enumerate(rows.names):
            router, _, number = name.rpartition(".expert_")
            if not router:
                continue
            known = found.setdefault(router, _Work(rows, row, {}))
            assert isinstance(known.of_each, dict)
            known.of_each[int(number)] = float(loads[row]) if loads[row] > 1 - _LOAD else 0.0
    return found
