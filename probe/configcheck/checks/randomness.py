"""Random numbers: seeds that were set, and the places that draw."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.configcheck.findings import ERROR, Check, Finding
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
        file, _, rest = str(frame).partition(", line ")
        frames.append(f"{file.rpartition('/')[2]},{rest.partition(',')[2]}")
    return "\n".join(frames)


def _place(place: Mapping[str, Any] | None) -> str:
    stack = (place or {}).get("stack") or [""]
    return " ".join(str(stack[0]).split())


def _shown(place: Mapping[str, Any]) -> str:
    return "; ".join(map(str, place.get("arguments") or ()))
