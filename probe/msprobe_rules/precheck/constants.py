"""The numbers of msProbe for each dtype: those that 26.2.0 computes with, and those of its documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class FormatConstants:
    """The format of a floating dtype.

    Attributes:
        mantissa: Stored bits of the significand.
        lowest_exponent: Of the smallest normal number.
        wider: The dtype in which msProbe computes its reference.
    """

    mantissa: int
    lowest_exponent: int
    wider: str

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0**-self.mantissa


PRECISIONS: Mapping[str, FormatConstants] = MappingProxyType(
    {
        "float64": FormatConstants(52, -1022, "float64"),
        "float32": FormatConstants(23, -126, "float64"),
        "float16": FormatConstants(10, -14, "float32"),
        "bfloat16": FormatConstants(7, -126, "float32"),
    }
)


@dataclass(frozen=True)
class Constants:
    """The numbers that metrics of the classes and limits of two devices use for one dtype.

    Attributes:
        small: Up to this magnitude of the reference an element counts as small.
        small_error: What a small element may be off, in the class of absolute thresholds.
        small_error_benchmark: The same in the benchmark class.
        relative: What other elements may be off, relative to the reference.
        ulp: How many units in the last place an element may be off.
        floor: The least value by which a metric of the NPU is divided.
    """

    small: float
    small_error: float
    small_error_benchmark: float
    relative: float
    ulp: float
    floor: float


# In 26.2.0 the 1e-16 stand where the documentation has 2^-16.
_V26_2 = {
    "float16": Constants(2**-10, 2**-16, 1e-16, 2**-10, 1, 2**-11),
    "bfloat16": Constants(2**-10, 1e-16, 1e-16, 2**-8, 1, 2**-8),
    "float32": Constants(2**-20, 2**-30, 2**-30, 2**-20, 32, 2**-14),
}
_DOCUMENTED = {
    "float16": Constants(2**-11, 2**-16, 2**-16, 2**-10, 1, 2**-11),
    "bfloat16": Constants(2**-8, 2**-16, 2**-16, 2**-8, 1, 2**-8),
    "float32": Constants(2**-14, 2**-30, 2**-30, 2**-20, 32, 2**-14),
}
V26_2: Mapping[str, Constants] = MappingProxyType(_V26_2)
"""Those of 26.2.0 by plain name of the dtype; other dtypes have none."""
DOCUMENTED: Mapping[str, Constants] = MappingProxyType(_DOCUMENTED)
"""The same of the documentation."""
