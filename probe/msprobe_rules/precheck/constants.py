"""The numbers with which msProbe 26.2.0 computes, for each dtype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
