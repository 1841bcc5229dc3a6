"""Content of the files of saved values: the protocol of rules, and our rules."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Protocol

from probe.rollout.saving.tree import Array, Tree

FILE, DTYPE = "file", "dtype"


class Stored(NamedTuple):
    """One array as it is written."""

    values: NDArray[Any]
    entry: Callable[[str], dict[str, Any]]
    """Makes the entry of the JSON file from the name of the array's own file; called in the thread that writes."""


class SavingRules(Protocol):
    """The form of the files."""

    def kept(self, key: str, tree: Tree) -> Tree | None:
        """The part of a value that is saved; ``None`` for nothing of it."""

    def stored(self, array: Array) -> Stored:
        """Form in which an array is written."""


class ProbeSaving:
    """Our form: values keep their dtype, and the entry names dtype and file."""

    def kept(self, key: str, tree: Tree) -> Tree | None:
        """All of it."""
        return tree

    def stored(self, array: Array) -> Stored:
        """The values as they are."""
        return Stored(array.values, partial(_entry, array))


PROBE_SAVING = ProbeSaving()


def _entry(array: Array, file: str) -> dict[str, Any]:
    entry = statistics(array.values)
    return {**entry, "shape": list(array.values.shape), DTYPE: array.dtype, FILE: file}


def statistics(values: NDArray[Any]) -> dict[str, Any]:
    """Largest and smallest value, mean and Euclidean norm, in float64; ``None`` where there is none.

    Example:
        >>> statistics(np.array([3, -4]))
        {'max': 3, 'min': -4, 'mean': -0.5, 'norm': 5.0}
    """
    kind = values.dtype.kind
    if not values.size or kind not in "biufc":
        return dict.fromkeys(("max", "min", "mean", "norm"))
    with np.errstate(all="ignore"):
        if kind == "c":
            wide = np.abs(values.astype(np.complex128))
            return {"max": None, "min": None, "mean": None, "norm": _norm(wide)}
        numbers = values.view(np.uint8) if kind == "b" else values
        largest, smallest = numbers.max().item(), numbers.min().item()
        return {"max": largest, "min": smallest, "mean": float(numbers.mean(dtype=np.float64)), "norm": _norm(numbers)}


def _norm(values: NDArray[Any]) -> float:
    # In parts, so that little memory is taken on the way.
    flat, step = values.reshape(-1), 1 << 20
    parts = (flat[start : start + step].astype(np.float64) for start in range(0, flat.size, step))
    return float(np.sqrt(sum(float(np.dot(part, part)) for part in parts)))
