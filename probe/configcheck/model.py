"""The model of a run: its weights and inputs, and the random numbers that are drawn."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from probe.common.dump.stack_text import parse_frame
from probe.configcheck.findings import ERROR, INFO, Check, Finding
from probe.configcheck.pack import Pack
from probe.configcheck.tables import DATASET_WHY, MISSING_WEIGHT, RANDOM_WHY, SWITCH_WHY, WEIGHTS_WHY

_STATISTICS = ("max", "min", "mean", "norm")


def check_dataset(golden: Pack, target: Pack) -> Check:
    """Compare what the model got, step by step and rank by rank."""
    return Check("dataset", list(_rows(golden, target, "dataset")))


def check_weights(golden: Pack, target: Pack) -> Check:
    """Compare the parameters; one that a side lacks is an error."""
    return Check("weights", list(_rows(golden, target, "weights")))


def inputs(content: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a step by ``args.0`` and ``kwargs.mask``."""
    return {f"{kind}.{name}": value for kind in ("args", "kwargs") for name, value in (content.get(kind) or {}).items()}


def _rows(golden: Pack, target: Pack, kind: str) -> Iterator[Finding]:
    why = DATASET_WHY if kind == "dataset" else WEIGHTS_WHY
    one, other = (pack.dataset if kind == "dataset" else pack.weights for pack in (golden, target))
    for step, rank in sorted({*one, *other}):
        where = f"step {step}, rank {rank}"
        if (step, rank) not in one or (step, rank) not in other:
            yield Finding(where, *_sides((step, rank) in one), ERROR, f"one run has no {kind} of this step and rank")
            continue
        mine, theirs = one[step, rank], other[step, rank]
        if kind == "dataset":
            mine, theirs = inputs(mine), inputs(theirs)
        marks = golden.checksums.get((kind, step, rank), {}), target.checksums.get((kind, step, rank), {})
        for name in dict.fromkeys((*mine, *theirs)):
            title = f"{where}: {name}"
            if name not in mine or name not in theirs:
                yield Finding(title, *_sides(name in mine), ERROR, MISSING_WEIGHT if kind == "weights" else why)
                continue
            found = difference(mine[name], theirs[name], marks[0].get(name), marks[1].get(name))
            if found is not None:
                yield Finding(title, found[0], found[1], ERROR, why)


def _sides(golden_has_it: bool) -> tuple[str | None, str | None]:
    return ("there", None) if golden_has_it else (None, "there")


def difference(
    one: Any, other: Any, mark: Mapping[str, Any] | None, other_mark: Mapping[str, Any] | None
) -> Optional[tuple[str, str]]:  # noqa: UP045 (evaluated, on Python 3.9 too)
    """Difference of two tensors, in words for each side; ``None`` if nothing tells them apart."""
    if mark and other_mark:
        for key in ("shape", "dtype"):
            if mark.get(key) != other_mark.get(key):
                return f"{key} {mark.get(key)}", f"{key} {other_mark.get(key)}"
        if mark.get("checksum") is not None and other_mark.get("checksum") is not None:
            if mark["checksum"] == other_mark["checksum"]:
                return None
            if _statistics(one) == _statistics(other):
                texts = (f"checksum {each['checksum']}, the same statistics" for each in (mark, other_mark))
                return next(texts), next(texts)
            return _words(one), _words(other)
        if mark.get("value") != other_mark.get("value"):
            return str(mark.get("value")), str(other_mark.get("value"))
    if _statistics(one) == _statistics(other):
        return None
    return _words(one), _words(other)


def _statistics(value: Any) -> Any:
    return tuple(value.get(name) for name in _STATISTICS) if isinstance(value, Mapping) else value


def _words(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    numbers = ((name, value.get(name)) for name in _STATISTICS)
    return ", ".join(
        f"{name} {number:.9g}" if isinstance(number, float) else f"{name} {number}" for name, number in numbers
    )


# --- randomness


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
            rows += _function_findings(f"rank {rank}: {api}", one.get(api, ()), other.get(api, ()), ours)
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


def _function_findings(
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
