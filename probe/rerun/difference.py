"""The extent to which a recorded tensor and the same one of now are from each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics.formats import rounding_format
from probe.common.numerics.rounding import spacing

Array = NDArray[Any]


@dataclass(frozen=True)
class ElementDifference:
    """The difference between two results of one call."""

    count: int
    """Elements that differ, if only in the sign of a zero; NaN equals NaN."""
    size: int
    form: str = ""
    """In words how dtype or shape differ; then nothing else is known."""
    index: Optional[tuple[int, ...]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The element that is furthest off in units of the last place, one of them NaN first; ``None`` if all are equal."""
    recorded: Any = None
    now: Any = None
    max_ulp: Optional[float] = None  # noqa: UP045
    """The distance there; ``None`` of whole numbers, and of what is not finite."""

    @property
    def is_same(self) -> bool:
        """True if both have the same values."""
        return not self.count and not self.form


def difference(recorded: Array, recorded_dtype: str, now: Array, dtype: str) -> ElementDifference:
    """The difference between `recorded` and `now`.

    Args:
        recorded: The values of the dump.
        recorded_dtype: The plain name of their dtype.
        now: The values of the new run.
        dtype: The plain name of their dtype.
    """
    if recorded.shape != now.shape:
        return ElementDifference(0, now.size, f"recorded with the shape {list(recorded.shape)}, now {list(now.shape)}")
    if recorded_dtype != dtype:
        return ElementDifference(0, now.size, f"recorded as {recorded_dtype}, now {dtype}")
    differs = np.asarray(recorded != now)
    if now.dtype.kind == "f":
        differs |= np.signbit(recorded) != np.signbit(now)
    if now.dtype.kind in "fc":
        differs &= ~(np.isnan(recorded) & np.isnan(now))
    count = int(np.count_nonzero(differs))
    if not count:
        return ElementDifference(0, now.size)
    distance = _ulps(recorded, now, dtype, differs)
    worst = int(np.argmax(np.where(differs, np.nan_to_num(distance, nan=np.inf), -1.0)))
    furthest = float(distance.flat[worst])
    return ElementDifference(
        count, now.size, "", tuple(map(int, np.unravel_index(worst, now.shape))), recorded.flat[worst].item(),
        now.flat[worst].item(), furthest if rounding_format(dtype) is not None and np.isfinite(furthest) else None,
    )  # fmt: skip


def _ulps(recorded: Array, now: Array, dtype: str, differs: Array) -> Array:
    """The distance of each pair that differs, in units of the last place of the recorded one."""
    of = rounding_format(dtype)
    if of is None:
        return np.asarray(differs, np.float64)
    wide: Any = np.complex128 if now.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        magnitude = np.abs(recorded.astype(wide))
        units = spacing(np.where(np.isfinite(magnitude), magnitude, 0.0), of)
        return np.asarray(np.abs(now.astype(wide) - recorded.astype(wide)) / units)
