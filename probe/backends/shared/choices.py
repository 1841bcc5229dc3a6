"""The choices of a call from arrays, for backends whose tensors numpy reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.backends.protocol import Source
from probe.common.dump.choices import MOST_VALUES, Choices, number_kept

if TYPE_CHECKING:
    from numpy.typing import NDArray


def choices_of(indices: NDArray[Any], source: Source | None, read: Callable[[Any], NDArray[Any] | None]) -> Choices:
    """The choices that an array of whole numbers is.

    Args:
        indices: As the call returned them.
        source: Where they were looked for.
        read: Gives the values of `source` as an array of real numbers; it is called if margins are looked for.
    """
    takes_several = source is None or source.takes_several
    k = 1
    if takes_several and indices.ndim:
        indices = np.moveaxis(indices, -1 if source is None or source.dim is None else source.dim, -1)
        k = indices.shape[-1]
    made = indices.size // k if k else 0
    rows, kept = indices.reshape(made, k), number_kept(k, made)
    margins = None
    if source is not None and kept and has_margins(source, k, kept) and (values := read(source.values)) is not None:
        whole = source.dim is None and not takes_several
        among = values.reshape(1, -1) if whole else np.moveaxis(values, -1 if source.dim is None else source.dim, -1)
        margins = _margins(among.reshape(-1, among.shape[-1])[:kept], rows[:kept], source.largest)
    return Choices(rows[:kept].astype(np.int32), made, margins)


def has_margins(source: Source, k: int, kept: int) -> bool:
    """True if a choice of `k` leaves values out, and those of all that are kept are few enough to be looked at."""
    if source.values is None or not len(source.values.shape):
        return False
    shape = source.values.shape
    whole = source.dim is None and not source.takes_several
    width: int = math.prod(shape) if whole else shape[-1 if source.dim is None else source.dim]
    return k < width and kept * width <= MOST_VALUES


def _margins(values: NDArray[Any], indices: NDArray[Any], largest: bool) -> NDArray[Any] | None:
    """The difference of the last value of each row that was taken and the first that was not.

    ``None`` if the indices are of something else.
    """
    rows, width = values.shape
    if rows != len(indices) or indices.min() < 0 or indices.max() >= width:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        # A copy, in which those that are taken are left out.
        rest = values.astype(np.float32)
        taken = np.take_along_axis(rest, indices, 1)
        np.put_along_axis(rest, indices, -np.inf if largest else np.inf, 1)
        found: NDArray[Any] = taken.min(1) - rest.max(1) if largest else rest.min(1) - taken.max(1)
    return found
