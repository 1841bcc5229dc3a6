"""The metrics of the classes of APIs, and those of every tensor: what the columns of the details hold.

The formulas are in the documentation page of the tables. A pair of tensors is read block by block, so that what is
computed of a block stays in the cache of a processor, and memory does not grow with the tensors.

In all functions `result` are the values of the device, of which bfloat16 is held in float32; `reference` has the dtype
in which the reference was computed. Both are vectors of one length.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeGuard

from probe.common.data_files import load_yaml
from probe.msprobe_rules.precheck.details import ERROR, PASS, DetailsRow
from probe.msprobe_rules.precheck.layout import Number

REFERENCE_DTYPES: Mapping[str, str] = MappingProxyType(
    {"float64": "float64", "float32": "float64", "float16": "float32", "bfloat16": "float32"}
)
"""The dtype in which msProbe computes its reference, by the plain name of the dtype of a result."""


@dataclass(frozen=True)
class Constants:
    """The numbers that metrics and limits of two devices use for one dtype.

    Attributes:
        small: Up to this magnitude of the reference an element counts as small.
        small_error: The amount by which a small element may be off.
        floor: The least value by which a metric of the NPU is divided.
    """

    small: float
    small_error: float
    floor: float


# The 1e-16 stand where the documentation of msProbe has 2^-16.
V26_2: Mapping[str, Constants] = MappingProxyType(
    {
        "float16": Constants(2**-10, 1e-16, 2**-11),
        "bfloat16": Constants(2**-10, 1e-16, 2**-8),
        "float32": Constants(2**-20, 2**-30, 2**-14),
    }
)
"""The numbers of 26.2.0 by plain name of the dtype; other dtypes have none."""


# --- class metrics


Array = NDArray[Any]
Metrics = dict[str, Number]

BLOCK = 1 << 13
"""Elements that are measured at once: the arrays of larger ones are taken anew from the system, which takes longer."""
_ZERO = float(np.finfo(np.float64).eps)
"""A tensor of which no element is larger counts as zero in the cosine."""


class Block:
    """A part of both tensors, and what several metrics need of it."""

    def __init__(self, result: Array, reference: Array, dtype: str, constants: Constants | None) -> None:
        self.result, self.reference = result, reference
        self.size = result.size
        self._dtype, self._constants = dtype, constants

    @cached_property
    def magnitude(self) -> Array:
        """The absolute values of the reference."""
        return np.abs(self.reference)

    @cached_property
    def error(self) -> Array:
        error: Array = np.abs(self.result - self.reference)
        return error

    @cached_property
    def relative(self) -> Array:
        """Errors relative to the reference, with machine epsilon of its dtype added; 2^-8 for bfloat16."""
        epsilon = 2**-8 if self._dtype == "bfloat16" else np.finfo(self.reference.dtype).eps
        relative: Array = self.error / (self.magnitude + epsilon)
        return relative

    @cached_property
    def worst_relative(self) -> float:
        """NaN where there is one."""
        return float(self.relative.max())

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

    @cached_property
    def is_finite(self) -> bool:
        return bool(self.finite.all())

    @cached_property
    def is_normal(self) -> bool:
        """True if all of it is."""
        assert self._constants is not None
        return self.is_finite and bool(self.magnitude.min() > self._constants.small)


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
    """`cosine` and `max_abs`, and the largest magnitude of either tensor.

    Args:
        scales: What both tensors are divided by, so that no square of a float64 overflows; others need none.
    """

    def __init__(self, scales: tuple[float, float] | None = None) -> None:
        self._scales = scales
        self._both = self._of_result = self._of_reference = self._max = 0.0
        self._count = 0
        self.largest = (0.0, 0.0)
        """The largest values of the result and of the reference; NaN if there is one."""

    def add(self, block: Block) -> None:
        """Count in a part."""
        self._count += block.size
        self._max = _larger(self._max, block.error.max())
        of_result = max(abs(block.result.max()), abs(block.result.min()))
        self.largest = _larger(self.largest[0], of_result), _larger(self.largest[1], block.magnitude.max())
        result, reference = (values.astype(np.float64, copy=False) for values in (block.result, block.reference))
        if self._scales is not None:
            result, reference = result / self._scales[0], reference / self._scales[1]
        self._both += float(result.dot(reference))
        self._of_result += float(result.dot(result))
        self._of_reference += float(reference.dot(reference))

    def metrics(self) -> Metrics:
        """No cosine of one element, nor where one tensor is zero."""
        found: Metrics = {"max_abs": self._max}
        if self._count > 1 and not any(is_zero(size) for size in self.largest):
            lengths = math.sqrt(self._of_result) * math.sqrt(self._of_reference)
            found["cosine"] = self._both / lengths if lengths else math.nan
        return found


def overall(result: Array, reference: Array, scaled: bool = False) -> Overall:
    """A meter for these two, which are not empty; if `scaled`, both are divided by their largest magnitudes.

    The release does so, and the last of its digits differ otherwise.
    """
    if result.dtype.itemsize < 8 and not scaled:
        return Overall()
    with np.errstate(all="ignore"):
        largest = [max(abs(float(values.max())), abs(float(values.min()))) for values in (result, reference)]
    return Overall((largest[0], largest[1]))


class Dual:
    """`dual_100`, `dual_1000`, `dual_10000`: the share of elements of which the relative error is below 1/100 ...

    Args:
        shares: Which of 100, 1000 and 10000.
    """

    def __init__(self, shares: Sequence[int]) -> None:
        self._below = dict.fromkeys(shares, 0)
        self._count = 0

    def add(self, block: Block) -> None:
        """Count in a part."""
        self._count += block.size
        for share in self._below:
            if block.worst_relative < 1 / share:
                self._below[share] += block.size
                continue
            self._below[share] += int(np.count_nonzero(block.relative < 1 / share))

    def metrics(self) -> Metrics:
        return {f"dual_{share}": below / self._count for share, below in self._below.items()}


class Benchmark:
    """`error_balance`, `rmse`, `small_value_share`, `max_rel`, `mean_rel`."""

    def __init__(self, constants: Constants) -> None:
        self._limit = constants.small_error
        self._squares, self._mean = _Mean(), _Mean()
        self._small = self._small_wrong = self._masked = self._count = self._balance = 0
        # 0 of no normal element, and 0.0 of exact ones: the release writes them so.
        self._worst: list[float] = []

    def add(self, block: Block) -> None:
        self._count += block.size
        self._balance += int(np.count_nonzero(block.result > block.cast))
        self._balance -= int(np.count_nonzero(block.result < block.cast))
        if block.is_normal:
            self._squares.add(block.error**2)
            self._mean.add(block.relative)
            self._worst.append(block.worst_relative)
            return
        relative, small = block.relative[block.normal], block.small
        self._masked += block.size - relative.size
        self._squares.add(np.where(block.normal, block.error, 0) ** 2)
        self._mean.add(relative)
        if relative.size:
            self._worst.append(float(relative.max()))
        self._small += int(np.count_nonzero(small))
        self._small_wrong += int(np.count_nonzero(block.error[small] > self._limit))

    def metrics(self) -> Metrics:
        used = self._count - self._masked
        # The two constants are the release's own, against a division by zero.
        square = self._squares.value() * (self._count / (used + 1e-4) + 1e-4)
        return {
            "error_balance": abs(self._balance) / self._count,
            "rmse": math.sqrt(square),
            "small_value_share": self._small_wrong / self._small if self._small else 0,
            "max_rel": max(self._worst, default=0),
            "mean_rel": self._mean.value(),
        }


class Binary:
    """`binary_error_rate`: the share of elements that are not equal."""

    def __init__(self) -> None:
        self._wrong = self._count = 0

    def add(self, block: Block) -> None:
        self._count += block.size
        self._wrong += int(np.count_nonzero(block.result != block.reference))

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
    """The measures of `meters` for two tensors of one shape, which are not empty.

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
    """True if a tensor with that largest magnitude counts as zero in the cosine."""
    return largest <= _ZERO


def _larger(found: float, other: float) -> float:
    """The larger of both, NaN where one is."""
    return float(other) if other > found or other != other else found


# --- outputs


@dataclass(frozen=True)
class Tensor:
    """The values of a tensor, and the plain name of its dtype; bfloat16 is held in float32."""

    values: NDArray[Any]
    dtype: str


Output = Union[Tensor, None, bool, int, float, str, Sequence[Any], Mapping[str, Any]]


def plain_row(result: Any, reference: Any, name: str) -> DetailsRow:
    """The row of a number, a text or a bool, which has to be equal."""
    bench, device = (f"<class '{type(value).__name__}'>" for value in (reference, result))
    equal = result == reference or (result != result and reference != reference)
    rate = {} if isinstance(result, str) else {"binary_error_rate": 0.0 if equal else 1.0}
    return DetailsRow(name, PASS if equal else ERROR, "", bench, device, metrics=rate)


def is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    """True if a value is a list or a tuple."""
    return isinstance(value, (list, tuple))


# --- ratio limits


BINARY, ABSOLUTE_THRESHOLD, ULP, BENCHMARK = "binary", "absolute_threshold", "ulp", "benchmark"


@cache
def ratio_limits(base: str, as_written: bool = False) -> Mapping[str, float]:
    """Largest ratio of an NPU's metric to a GPU's, by metric.

    Args:
        base: The API: ``Functional.gelu``.
        as_written: Compare names as they are written, as 26.2.0 does, which so never finds GELU. The documentation
            means the function.
    """
    tables = _tables()
    name = base.rpartition(".")[2]
    for level, listed in tables["levels"].items():
        if name in listed or (not as_written and _function_name(name) in map(_without_marks, listed)):
            return dict(tables["limits"][level])
    return dict(tables["limits"]["L0"])


def _function_name(name: str) -> str:
    """The function of a method or an operator: ``matmul`` of ``__rmatmul__``."""
    return _without_marks("matmul" if name in ("__rmatmul__", "__imatmul__") else name)


def _without_marks(name: str) -> str:
    return name.replace("_", "").lower()


@cache
def _tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = load_yaml(os.path.join(os.path.dirname(__file__), "ratio_limits.yaml"))
    return tables
