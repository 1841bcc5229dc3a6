"""Weights and inputs of the model: shape and dtype first, then checksums, then statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from probe.configcheck.findings import ERROR, Check, Finding
from probe.configcheck.pack import Pack
from probe.configcheck.tables import DATASET_WHY, MISSING_WEIGHT, WEIGHTS_WHY

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
