"""The metrics of the classes of APIs, and those of every tensor: what the columns of the details hold.

The formulas are in the documentation page of the tables. A pair of tensors is read block by block, so that what is
computed of a block stays in the cache of a processor, and memory does not grow with the tensors.

In all functions `result` are the values of the device, of which bfloat16 is held in float32; `reference` has the dtype
in which the reference was computed. Both are vectors of one length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.precheck.standards.constants import PRECISIONS, Constants
from probe.precheck.tables.layout import Number

Array = NDArray[Any]
Metrics = dict[str, Number]

BLOCK = 1 << 16
"""Elements that are measured at once."""
_ZERO = float(np.finfo(np.float64).eps)
"""A tensor of which no element is larger counts as zero in the cosine."""


class Block:
    """A part of both tensors, and what several metrics need of it."""

    def __init__(self, result: Array, reference: Array, dtype: str, constants: Constants | None) -> None:
        self.result, self.reference = result, reference
        self.size = result.size
        self._dtype, self._constants = dtype, constants

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number of the dtype of the result."""
        return PRECISIONS[self._dtype].epsilon

    @cached_property
    def magnitude(self) -> Array:
        """Of the reference."""
        return np.abs(self.reference)

    @cached_property
    def error(self) -> Array:
        return np.abs(self.result - self.reference)

    @cached_property
    def relative(self) -> Array:
        """Errors relative to the reference, with machine epsilon of its dtype added; 2^-8 for bfloat16."""
        epsilon = 2**-8 if self._dtype == "bfloat16" else np.finfo(self.reference.dtype).eps
        relative: Array = self.error / (self.magnitude + epsilon)
        return relative

    @cached_property
    def cast(self) -> Array:
        """The reference in the dtype of the result."""
        return self.reference.astype(self.result.dtype)

    @cached_property
    def finite(self) -> Array:
        return np.isfinite(self.result) & np.isfinite(self.cast)

    @cached_property
    def small(self) -> Array:
        assert self._constants is not None
        return (self.magnitude <= self._constants.small) & self.finite

    @cached_property
    def normal(self) -> Array:
        return self.finite & ~self.small


class _Mean:
    """The mean of arrays, each in its own dtype as NumPy takes it."""

    def __init__(self) -> None:
        self._parts: list[tuple[Number, int]] = []

    def add(self, values: Array) -> None:
        if values.size:
            self._parts.append((values.mean(), values.size))

    def value(self) -> Number:
        """0 of nothing."""
        if len(self._parts) < 2:
            return float(self._parts[0][0]) if self._parts else 0
        return math.fsum(mean * size for mean, size in self._parts) / sum(size for _, size in self._parts)


class Overall:
    """`cosine` and `max_abs`.

    Args:
        largest: The largest magnitudes of both tensors, by which they are divided so that no square overflows.
    """

    def __init__(self, largest: tuple[float, float]) -> None:
        self._largest = largest
        self._both = self._of_result = self._of_reference = self._max = 0.0
        self._count = 0

    def add(self, block: Block) -> None:
        """Count in a part."""
        result, reference = (
            values.astype(np.float64) / largest
            for values, largest in zip((block.result, block.reference), self._largest)
        )
        self._count += block.size
        self._both += float(result.dot(reference))
        self._of_result += float(result.dot(result))
        self._of_reference += float(reference.dot(reference))
        self._max = float(np.maximum(self._max, block.error.max()))

    def metrics(self) -> Metrics:
        """No cosine of one element, nor where one tensor is zero."""
        found: Metrics = {"max_abs": self._max}
        if self._count > 1 and not any(is_zero(size) for size in self._largest):
            lengths = math.sqrt(self._of_result) * math.sqrt(self._of_reference)
            found["cosine"] = self._both / lengths if lengths else math.nan
        return found


class Dual:
    """`dual_100`, `dual_1000`, `dual_10000`: the share of elements of which the relative error is below 1/100 ...

    Args:
        shares: Which of 100, 1000 and 10000.
        constants: If given, an element also counts when its error is no more than one unit in the last place, or than
            what small elements may be off.
    """

    def __init__(self, shares: Sequence[int], constants: Constants | None = None) -> None:
        self._constants = constants
        self._below = dict.fromkeys(shares, 0)
        self._count = 0

    def add(self, block: Block) -> None:
        """Count in a part."""
        self._count += block.size
        for share in self._below:
            holds = block.relative < 1 / share
            if self._constants is not None and not holds.all():
                holds |= block.relative <= block.epsilon
                holds |= block.small & (block.error <= self._constants.small_error)
            self._below[share] += int(np.count_nonzero(holds))

    def metrics(self) -> Metrics:
        return {f"dual_{share}": below / self._count for share, below in self._below.items()}


class Benchmark:
    """`error_balance`, `rmse`, `small_value_share`, `max_rel`, `mean_rel`."""

    def __init__(self, constants: Constants) -> None:
        self._limit = constants.small_error_benchmark
        self._squares, self._mean = _Mean(), _Mean()
        self._small = self._small_wrong = self._masked = self._count = self._balance = 0
        self._worst: Number = 0

    def add(self, block: Block) -> None:
        normal, small = block.normal, block.small
        relative = block.relative[normal]
        self._count += block.size
        self._masked += block.size - relative.size
        self._squares.add(np.where(normal, block.error, 0) ** 2)
        self._mean.add(relative)
        if relative.size:
            self._worst = max(self._worst, float(relative.max()))
        self._small += int(np.count_nonzero(small))
        self._small_wrong += int(np.count_nonzero(block.error[small] > self._limit))
        self._balance += int(np.count_nonzero(block.result > block.cast))
        self._balance -= int(np.count_nonzero(block.result < block.cast))

    def metrics(self) -> Metrics:
        used = self._count - self._masked
        # The two constants are the release's own, against a division by zero.
        square = self._squares.value() * (self._count / (used + 1e-4) + 1e-4)
        return {
            "error_balance": abs(self._balance) / self._count,
            "rmse": math.sqrt(square),
            "small_value_share": self._small_wrong / self._small if self._small else 0,
            "max_rel": self._worst,
            "mean_rel": self._mean.value(),
        }


class AbsoluteThreshold:
    """`inf_nan_rate`, `rel_rate`, `abs_rate`."""

    def __init__(self, constants: Constants, dtype: str) -> None:
        self._constants, self._largest = constants, _largest(dtype)
        self._special = self._normal = self._small = 0
        self._special_wrong = self._normal_wrong = self._small_wrong = 0

    def add(self, block: Block) -> None:
        normal, small = block.normal, block.small
        if not block.finite.all():
            special = ~block.finite
            self._special += int(np.count_nonzero(special))
            self._special_wrong += differing(block.result[special], block.reference[special], self._largest)
        self._normal += int(np.count_nonzero(normal))
        self._normal_wrong += int(np.count_nonzero(block.relative[normal] > self._constants.relative))
        self._small += int(np.count_nonzero(small))
        self._small_wrong += int(np.count_nonzero(block.error[small] > self._constants.small_error))

    def metrics(self) -> Metrics:
        return {
            "inf_nan_rate": _share(self._special_wrong, self._special),
            "rel_rate": _share(self._normal_wrong, self._normal),
            "abs_rate": _share(self._small_wrong, self._small),
        }


class Ulp:
    """`max_ulp`, `mean_ulp`, `ulp_share`: errors in units in the last place of the reference."""

    def __init__(self, constants: Constants, dtype: str) -> None:
        self._limit, self._precision = constants.ulp, PRECISIONS[dtype]
        self._kind = np.dtype(self._precision.wider)
        self._mean = _Mean()
        self._max = 0.0
        self._over = self._count = 0

    def add(self, block: Block) -> None:
        zero = block.magnitude == 0
        # An error at zero is measured as if the reference were 1.
        exponents = np.floor(np.log2(np.where(zero, 1, block.magnitude)))
        exponents = np.maximum(exponents, self._precision.lowest_exponent)
        units = np.exp2(self._precision.mantissa - exponents).astype(self._kind)
        error = np.abs((block.result.astype(self._kind) - block.reference).astype(self._kind) * units)
        self._count += block.size
        self._mean.add(error)
        self._max = float(np.maximum(self._max, error.max()))
        self._over += int(np.count_nonzero(error > self._limit))

    def metrics(self) -> Metrics:
        return {"max_ulp": self._max, "mean_ulp": self._mean.value(), "ulp_share": self._over / self._count}


class Binary:
    """`binary_error_rate`: the share of elements that are not equal.

    Args:
        equal_nan: Whether NaN on both sides is equal.
    """

    def __init__(self, equal_nan: bool = False) -> None:
        self._equal_nan = equal_nan
        self._wrong = self._count = 0

    def add(self, block: Block) -> None:
        self._count += block.size
        wrong = block.result != block.reference
        if self._equal_nan:
            wrong &= ~((block.result != block.result) & (block.reference != block.reference))
        self._wrong += int(np.count_nonzero(wrong))

    def metrics(self) -> Metrics:
        return {"binary_error_rate": self._wrong / self._count}


def blocks(result: Array, reference: Array) -> Iterator[tuple[Array, Array]]:
    """Two vectors of one length, part by part."""
    for start in range(0, result.size, BLOCK):
        yield result[start : start + BLOCK], reference[start : start + BLOCK]


def measure(
    result: Array,
    reference: Array,
    meters: Sequence[Any],
    dtype: str,
    constants: Constants | None,
    prepare: Callable[[Array, Array], tuple[Array, Array]] | None = None,
) -> Metrics:
    """What `meters` say of two tensors of one shape, which are not empty.

    Args:
        meters: Objects of the classes above, made for this pair.
        dtype: The plain name of the dtype of `result`.
        constants: Those of the dtype; some meters need them.
        prepare: What is done to each part of both first.
    """
    with np.errstate(all="ignore"):
        for parts in blocks(result.reshape(-1), reference.reshape(-1)):
            block = Block(*(prepare(*parts) if prepare else parts), dtype, constants)
            for meter in meters:
                meter.add(block)
    return {name: value for meter in meters for name, value in meter.metrics().items()}


def is_zero(largest: float) -> bool:
    """Whether a tensor with that largest magnitude counts as zero in the cosine."""
    return largest <= _ZERO


def largest_magnitudes(result: Array, reference: Array) -> tuple[float, float]:
    """Of each; NaN where there is one."""
    largest = [0.0, 0.0]
    for parts in blocks(result.reshape(-1), reference.reshape(-1)):
        for place, values in enumerate(parts):
            largest[place] = float(np.maximum(largest[place], np.abs(values).max()))
    return largest[0], largest[1]


def differing(result: Array, reference: Array, largest: float) -> int:
    """How many elements differ after both are clipped to the range of a dtype; NaN equals NaN."""
    one, other = np.clip(result.astype(np.float64), -largest, largest), np.clip(reference, -largest, largest)
    return int(np.count_nonzero((one != other) & ~(np.isnan(one) & np.isnan(other))))


def _largest(dtype: str) -> float:
    # The largest bfloat16 is 2^127 times 1 and seven bits after it.
    return 2.0**127 * (2 - 2.0**-7) if dtype == "bfloat16" else float(np.finfo(dtype).max)


def _share(wrong: int, of: int) -> float:
    return wrong / of if of else 0.0
