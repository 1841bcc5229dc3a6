"""Random numbers: seeds that were set, and the places that draw."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.common.dump.stack_text import parse_frame
from probe.configcheck.findings import ERROR, INFO, Check, Finding
from probe.configcheck.pack import Pack
from probe.configcheck.tables import RANDOM_WHY, SWITCH_WHY

LEAST_SIMILARITY = 0.8
"""Stacks below it are not the same place; msProbe's number."""

Calls = Mapping[str, Sequence[Mapping[str, Any]]]


def check_random(golden: Mapping[int, Calls], target: Mapping[int, Calls], ours: bool) -> Check:
    """Compare the calls of each rank.

    Args:
        golden: By rank, the places of each function that draws.
        target: The same.
        ours: True if both know the arguments, such as seeds.
    """
    rows: list[Finding] = []
    for rank in sorted({*golden, *target}):
        one, other = golden.get(rank, {}), target.get(rank, {})
        for api in dict.fromkeys((*one, *other)):
            rows += _of_function(f"rank {rank}: {api}", one.get(api, ()), other.get(api, ()), ours)
    return Check("random", rows)


def check_states(golden: Pack, target: Pack) -> list[Finding]:
    """The first step in which the states of a generator differ, for each rank and generator.

    Two processes seldom have equal states of a generator that nobody seeds. It is an error if the program draws from
    it: its state changes from step to step, or a call that draws was noted.
    """
    rows = []
    both = sorted({*golden.random_states} & {*target.random_states})
    for rank in sorted({rank for _, rank in both}):
        steps = [step for step, of_rank in both if of_rank == rank]
        names = {name for step in steps for name in golden.random_states[step, rank]}
        for name in sorted(names):
            states = [[pack.random_states[step, rank].get(name) for step in steps] for pack in (golden, target)]
            first = next((at for at, (one, other) in enumerate(zip(*states)) if one != other), None)
            if first is None or None in (states[0][first], states[1][first]):
                continue
            is_drawn = any(len(set(each)) > 1 for each in states) or _draws(name, golden.random, target.random, rank)
            level, why = (ERROR, RANDOM_WHY) if is_drawn else (INFO, "no call that draws from this generator is known")
            title = f"step {steps[first]}, rank {rank}: state of the generator of {name}"
            rows.append(Finding(title, states[0][first], states[1][first], level, why))
    return rows


def _draws(generator: str, one: Mapping[int, Calls], other: Mapping[int, Calls], rank: int) -> bool:
    """True if a function of the library of a generator was called that does not merely set its seed."""
    beginnings = _LIBRARIES.get(generator, (f"{generator}.",))
    return any(
        api.startswith(beginnings) and "seed" not in api for calls in (one, other) for api in calls.get(rank, {})
    )


_LIBRARIES = {"torch": ("torch.", "Tensor."), "numpy": ("np.random.",), "python": ("random.",)}
"""Beginnings of names of functions in a pack, by generator."""


def _of_function(
    name: str, one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], ours: bool
) -> Iterator[Finding]:
    for mine, theirs in paired(one, other):
        place = _place(mine or theirs)
        counts = (None if mine is None else mine.get("count"), None if theirs is None else theirs.get("count"))
        if counts[0] != counts[1]:
            yield Finding(f"{name} at {place}", *counts, ERROR, RANDOM_WHY)
        elif ours and mine is not None and theirs is not None and mine.get("arguments") != theirs.get("arguments"):
            why = SWITCH_WHY["seeds"] if "seed" in name else RANDOM_WHY
            yield Finding(f"{name} at {place}", _shown(mine), _shown(theirs), ERROR, why)


def paired(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]]:
    """Places whose stacks are alike, and those of one side alone; folders of files are not looked at."""
    left = list(other)
    found: list[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]] = []
    for mine in one:
        ratios = [(difflib.SequenceMatcher(None, text(mine), text(each)).ratio(), -at) for at, each in enumerate(left)]
        ratio, at = max(ratios, default=(0.0, 0))
        found.append((mine, left.pop(-at) if ratio >= LEAST_SIMILARITY else None))
    return found + [(None, each) for each in left]


def text(place: Mapping[str, Any]) -> str:
    """The stack of a place: file names, functions and code."""
    frames = []
    for frame in place.get("stack") or ():
        found = parse_frame(str(frame))
        frames.append(str(frame) if found is None else f"{found.file}, in {found.function}, {found.source}")
    return "\n".join(frames)


def _place(place: Mapping[str, Any] | None) -> str:
    stack = (place or {}).get("stack") or [""]
    return " ".join(str(stack[0]).split())


def _shown(place: Mapping[str, Any]) -> str:
    return "; ".join(map(str, place.get("arguments") or ()))
