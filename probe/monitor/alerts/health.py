"""Rules over the meaning of rows: dead units, weights that do not change, missing gradients, depth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from probe.monitor.alerts.rows import FamilyRows, Finding, Flags, Floats, Integers, Kind, kind_of
from probe.monitor.alerts.tracks import Block, Track, floor_of, size_of

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
    found = {} if gradients is None else _work_of_rows(gradients, range(len(gradients.names)))
    activations = families.get("actv")
    if found or activations is None:
        return found
    inputs = [row for row, name in enumerate(activations.names) if ".input" in name]
    return _work_of_rows(activations, inputs)


def _work_of_rows(rows: FamilyRows, chosen: Sequence[int]) -> dict[str, _Work]:
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


# --- health


DEAD_SHARE = 0.999
"""Share of zeros in an output. A guess: a ReLU is zero in half of its outputs, a sparse one in up to 99 %."""
DEAD_STEPS, DEAD_GRADIENT_STEPS = 3, 16
"""Steps in a row. Guesses: an expert of a mixture may get no token in several steps."""
UNCHANGED_STEPS, UNCHANGED_STEPS_ALL = 8, 20
"""Steps in a row, of one weight beside others that change, and of all weights. Guesses: a schedule begins at zero."""
DEPTH_DECADES, DEPTH_MEMBERS, DEPTH_FIT, DEPTH_STEPS = 3.0, 4, 0.8, 3
"""A trend over the layers: decades from the first to the last, layers, share of the variance, steps in a row. Guesses;
twelve healthy trainings stay below them."""

ByFamily = Mapping[str, FamilyRows]
_OUTPUT = re.compile(r"\.output(?:_0|\.?\d)*$")
"""The first output of a module. Others may be zeros on purpose, as the position bias of attention to a T5 encoder."""


def dead(block: Block, track: Track) -> list[Finding]:
    """Outputs of modules that are all zero, and weight gradients that are."""
    can_die, is_activation, steps = track.kept("dead rows", 0, lambda: _dead_rows(block))
    if not can_die.any():
        return []
    zeros = block.column("zeros")
    holds: Flags = np.zeros(track.length, dtype=np.bool_)
    if block.sizes is not None:
        holds |= block.sizes == 0
    if zeros is not None:
        holds |= is_activation & (zeros >= DEAD_SHARE)
    holds &= can_die & block.judged
    if not holds.any() and not track.counter("dead").any():
        return []
    found = []
    for row in track.lasts("dead", holds, steps).tolist():
        what = "output" if is_activation[row] else "gradient"
        is_zero = block.sizes is not None and block.sizes[row] == 0
        op, value = ("norm", 0.0) if is_zero or zeros is None else ("zeros", float(zeros[row]))
        since = int(track.since("dead")[track.position(row)])
        share = "zero" if is_zero else f"zero in {value:.2%} of its elements"
        why = f"the {what} has been {share} for {steps[row]} steps"
        found.append(block.finding(row, op, "dead", value, "values other than zero", why, since))
    return found


def _dead_rows(block: Block) -> tuple[Flags, Flags, Integers]:
    """Rows that the rule judges, those of activations, and how many steps each may be zero."""
    # An expert of a mixture may get no token for long.
    names = [("", "") if expert_of(name) else (family, name) for family, name in block.names()]
    is_output = [family == "actv" and _OUTPUT.search(name) is not None for family, name in names]
    is_gradient = [family == "grad_reduced" for family, _ in names]
    # A number that was rounded to zero may have been any.
    is_exact = np.repeat([each.decimals is None for each in block.families], np.diff(block.starts))
    steps = np.where(is_gradient, DEAD_GRADIENT_STEPS, DEAD_STEPS)
    return (np.array(is_output) | is_gradient) & is_exact, np.array(is_output), steps


def unchanged(families: ByFamily, track: Track) -> list[Finding]:
    """Weights that the optimizer does not change although they have gradients."""
    after = families.get("param_updated") or families.get("param_origin")
    if after is None or after.decimals is not None:
        return []
    track.align(after)
    before = _before(after, families, track)
    if before is None:
        return []
    same: Flags = ((after.values == before) | (np.isnan(after.values) & np.isnan(before))).all(axis=1)
    some_change = not same.all()
    holds = same & _have_gradients(after, families) if some_change else same
    # One number may stay the same by chance, or by the rounding of float32.
    few = UNCHANGED_STEPS if len(after.ops) > 1 else UNCHANGED_STEPS_ALL
    found = []
    for row in track.lasts("unchanged", holds, few).tolist():
        if not some_change:
            continue
        since = int(track.since("unchanged")[track.position(row)])
        why = f"the weight has not changed for {few} steps, while other weights changed"
        found.append(_weight_finding(after, row, since, why))
    # The rows that are counted here are all rows, so that the first of them stands for all.
    for row in track.lasts("all unchanged", same & (not some_change), UNCHANGED_STEPS_ALL)[:1].tolist():
        since = int(track.since("all unchanged")[track.position(row)])
        found.append(_weight_finding(after, row, since, f"no weight has changed for {UNCHANGED_STEPS_ALL} steps"))
    return found


def _weight_finding(rows: FamilyRows, row: int, step: int, why: str) -> Finding:
    sizes = size_of(rows)
    value = float("nan") if sizes is None else float(sizes[row])
    return rows.finding(row, "norm", "unchanged", value, "a weight that changes", why, step)


def _before(after: FamilyRows, families: ByFamily, track: Track) -> Floats | None:
    """The statistics of the weights before the update: those of this step, or else of the last one."""
    origin = families.get("param_origin")
    if origin is not None and origin is not after and origin.names == after.names and origin.ops == after.ops:
        return origin.values
    last = track.array("last", lambda rows: np.full((rows, after.values.shape[1]), np.inf))
    before: Floats = last[track.at]
    last[track.at] = after.values
    return before


def _have_gradients(weights: FamilyRows, families: ByFamily) -> Flags:
    """True for weights whose gradients are larger than rounding error, and for all if none are recorded."""
    gradients = families.get("grad_reduced") or families.get("grad_unreduced")
    sizes = None if gradients is None else size_of(gradients)
    if gradients is None or sizes is None:
        return np.array([expert_of(name) is None for name in weights.names], dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        large = set(np.flatnonzero(sizes > floor_of(gradients, sizes)).tolist())
    names = {name for row, name in enumerate(gradients.names) if row in large and not expert_of(name)}
    return np.fromiter((name in names for name in weights.names), np.bool_, len(weights.names))


@dataclass(frozen=True)
class _Layers:
    """Rows of one name in consecutive layers."""

    name: str
    rows: Integers
    depths: Floats


_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.)")


def _layer_groups(rows: FamilyRows) -> list[_Layers]:
    """Groups of rows that differ in the first number of their name alone, and have one size."""
    groups: dict[str, list[tuple[int, int]]] = {}
    is_activation = kind_of(rows.family) is Kind.ACTIVATION
    for row, name in enumerate(rows.names):
        match = _NUMBER.search(name)
        if match is None or (is_activation and _OUTPUT.search(name) is None):
            continue
        size = "" if rows.numel is None else f"{rows.numel[row]:g}"
        micro = 0 if rows.micro is None else rows.micro[row]
        key = f"{name[: match.start(1)]}*{name[match.end(1) :]}\n{size}\n{micro}"
        groups.setdefault(key, []).append((int(match[1]), row))
    found = []
    for key, members in groups.items():
        members.sort()
        depths = np.array([depth for depth, _ in members], dtype=float)
        if len(members) >= DEPTH_MEMBERS and len(set(depths)) == len(members):
            found.append(_Layers(key.split("\n")[0], np.array([row for _, row in members]), depths))
    return found


class DepthRule:
    """Gradients, or outputs, that grow or shrink from layer to layer by orders of magnitude."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[object, list[_Layers]]] = {}
        self._lasting: dict[tuple[str, str], int] = {}

    def look(self, rows: FamilyRows) -> list[Finding]:
        if rows.family not in ("grad_reduced", "grad_unreduced", "actv"):
            return []
        sizes = size_of(rows)
        if sizes is None:
            return []
        known = self._groups.get(rows.family)
        if known is None or known[0] != rows.key:
            known = self._groups[rows.family] = (rows.key, _layer_groups(rows))
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log10(sizes)
        found = []
        for layers in known[1]:
            change = _trend(logs[layers.rows], layers.depths)
            key = rows.family, layers.name
            lasting = self._lasting[key] = self._lasting.get(key, 0) + 1 if abs(change) > DEPTH_DECADES else 0
            if lasting == DEPTH_STEPS:
                found.append(self._finding(rows, layers, sizes, change))
        return found

    @staticmethod
    def _finding(rows: FamilyRows, layers: _Layers, sizes: Floats, change: float) -> Finding:
        first, last = int(layers.rows[0]), int(layers.rows[-1])
        forward = kind_of(rows.family) is Kind.ACTIVATION
        # Gradients pass from the last layer to the first.
        source, end = (first, last) if forward else (last, first)
        grows = (change > 0) == forward
        rule = "exploding" if grows else "vanishing"
        word = "grows" if grows else "shrinks"
        why = f"norm {word} over {len(layers.rows)} layers from {sizes[source]:.3g} to {sizes[end]:.3g} ({layers.name})"
        expected = f"a change of at most {10**DEPTH_DECADES:g} times over the layers"
        since = max(rows.step - DEPTH_STEPS + 1, 0)
        return rows.finding(end, "norm", rule, sizes[end], expected, why, since)


def _trend(logs: Floats, depths: Floats) -> float:
    """The decades from the first layer to the last on a straight line; 0.0 where the line does not fit."""
    if not np.isfinite(logs).all():
        return 0.0
    x = depths - depths.mean()
    y = logs - logs.mean()
    variance = float(y @ y)
    slope = float(x @ y) / float(x @ x)
    if variance == 0 or slope * slope * float(x @ x) < DEPTH_FIT * variance:
        return 0.0
    return slope * float(depths[-1] - depths[0])


# --- gradients that were there and are no longer: a parameter that nothing uses now

MISSING_STEPS = 16
"""Steps in a row. A guess: tasks and layers may take turns."""
_Key = tuple[str, int]


class _Missing(NamedTuple):
    step: int
    looks: int
    had: int
    rows: FamilyRows
    row: int


class MissingGradients:
    """Parameters that had gradients in several steps and have none now, while others have.

    Where the files say that the program has frozen a parameter, by a row without values, it is not reported.

    Nothing is computed as long as the rows of a step are those of the step before.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._rows: FamilyRows | None = None
        self._positions: dict[_Key, int] = {}
        self._begun = 0
        self._looks = 0
        self._had: dict[_Key, int] = {}
        self._frozen: set[_Key] = set()
        self._missing: dict[_Key, _Missing] = {}

    def look(self, families: Mapping[str, FamilyRows], history: int) -> list[Finding]:
        """Findings of the step.

        Args:
            history: Steps in which a parameter must have had a gradient.
        """
        rows = families.get("grad_reduced") or families.get("grad_unreduced")
        if rows is None:
            return []
        if rows.key != self._key:
            self._change(rows, history)
        self._looks += 1
        found = []
        for each in self._missing.values():
            if self._looks - each.looks == MISSING_STEPS:
                why = f"the parameter has had no gradient for {MISSING_STEPS} steps, after {each.had} with one"
                text = f"{why}: it was frozen, or is not used any more"
                args = "unchanged", float("nan"), "a gradient, as before", text
                found.append(each.rows.finding(each.row, "norm", *args, each.step))
        return found

    def _change(self, rows: FamilyRows, history: int) -> None:
        """Other parameters than in the step before have gradients."""
        stages = rows.stages or (0,) * len(rows.names)
        keys = list(zip(rows.names, stages))
        frozen = () if rows.judged is None else np.flatnonzero(~rows.judged & np.isnan(rows.values).all(axis=1))
        empty = set(map(int, frozen))
        self._frozen.update(keys[at] for at in empty)
        positions = {key: at for at, key in enumerate(keys) if at not in empty}
        self._frozen.difference_update(positions)
        for key, at in self._positions.items():
            had = self._had[key] = self._had.get(key, 0) + self._looks - self._begun
            is_known = key in positions or key in self._frozen or expert_of(key[0]) is not None
            if not is_known and had >= history and self._rows is not None:
                self._missing[key] = _Missing(rows.step, self._looks, had, self._rows, at)
        for key in positions:
            self._missing.pop(key, None)
        self._key, self._rows, self._positions, self._begun = rows.key, rows, positions, self._looks
