"""Inputs that differ from the given ones by as little as their dtype allows, or in their order.

Values are arrays in which a dtype that numpy lacks is held in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics.formats import Format, format_of, rounding_format
from probe.common.numerics.rounding import spacing

Array = NDArray[Any]
Perturbed = Optional[list[Array]]
_WORDS = {"float64": np.uint64, "float32": np.uint32, "float16": np.uint16}
"""By the format in which values are held, the integers that have its bits."""


def bits_flipped(values: Sequence[Array], dtypes: Sequence[str]) -> Perturbed:
    """The last bit of every element of every tensor of floating-point numbers is the other one.

    What it makes of a value is a neighbour of it, above or below as the bit was. Zero, subnormal numbers, infinities
    and NaN stay: their neighbours are something else.
    """
    found = [_flipped(array, dtype) for array, dtype in zip(values, dtypes)]
    return None if all(each is None for each in found) else _filled(found, values)


def one_unit_added(values: Sequence[Array], dtypes: Sequence[str]) -> Perturbed:
    """To each element of the first tensor of floating-point numbers one unit in its last place is added, or taken away.

    Which of both is drawn, from the same seed each time: added to all elements alike it would do to a sum what no
    rounding does. Only to the first tensor: what is added to all operands of a difference is not seen in it.
    """
    found: list[Array | None] = [None] * len(values)
    for index, (array, dtype) in enumerate(zip(values, dtypes)):
        found[index] = _added(array, dtype)
        if found[index] is not None:
            return _filled(found, values)
    return None


def ends_exchanged(values: Sequence[Array], dtypes: Sequence[str]) -> Perturbed:
    """The first and the last element of the first tensor of floating-point numbers are exchanged."""
    for index, (array, dtype) in enumerate(zip(values, dtypes)):
        if rounding_format(dtype) is None or array.size < 2:
            continue
        exchanged = np.array(array)
        flat = exchanged.reshape(-1)
        flat[0], flat[-1] = array.flat[-1], array.flat[0]
        return None if flat[0] == flat[-1] else [*values[:index], exchanged, *values[index + 1 :]]
    return None


PERTURBATIONS: dict[str, Callable[[Sequence[Array], Sequence[str]], Perturbed]] = {
    "bit_noise": bits_flipped,
    "add_noise": one_unit_added,
    "change_value": ends_exchanged,
}
"""By ``pert_mode``. ``None`` is the answer where there is nothing to change."""


def _filled(found: Sequence[Array | None], values: Sequence[Array]) -> list[Array]:
    return [old if new is None else new for new, old in zip(found, values)]


def _normal(values: Array, of: Format) -> Array:
    sizes = np.abs(values)
    return np.asarray((sizes >= of.smallest_normal) & (sizes <= of.largest))


def _flipped(values: Array, dtype: str) -> Array | None:
    of, held = rounding_format(dtype), format_of(values.dtype.name)
    if of is None or of.digits < 2 or of.tapers or held is None or held.name not in _WORDS:
        return None
    word = _WORDS[held.name]
    # A bfloat16 is the upper half of a float32: its last bit has as many below it as float32 has digits more.
    flipped = (values.view(word) ^ word(1 << (held.digits - of.digits))).view(values.dtype)
    chosen = _normal(values, of) & (np.abs(flipped) <= of.largest)
    return np.where(chosen, flipped, values) if chosen.any() else None


def _added(values: Array, dtype: str) -> Array | None:
    of = rounding_format(dtype)
    if of is None or of.is_complex or values.dtype.kind != "f":
        return None
    chosen = _normal(values, of) & (np.abs(values) < of.largest / 2)
    if not chosen.any():
        return None
    added = np.array(values)
    wide = values[chosen].astype(np.float64)
    signs = np.random.default_rng(values.size).integers(0, 2, wide.shape) * 2 - 1
    # Towards zero as far as away from it, also below a power of two, where the distance to the neighbour is half of it.
    added[chosen] = wide + signs * spacing(np.abs(wide), of)
    return added
