"""What a standard says of one output: the device's values against the reference, with all columns of the details."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from probe.precheck.standards import documented, release
from probe.precheck.standards.constants import DOCUMENTED, RELEASE
from probe.precheck.tables.details import DetailsRow

Array = NDArray[Any]


def judge(
    base: str,
    result: Array,
    reference: Array,
    dtype: str,
    name: str,
    standard: str = DOCUMENTED,
    mindspore: bool = False,
) -> DetailsRow:
    """The row of one tensor.

    Args:
        base: Of the API: ``Functional.silu``.
        result: The values of the device; what NumPy lacks, such as bfloat16, is held in float32.
        reference: The values of higher precision: float64 or complex128, or the integer or bool dtype of the result.
        dtype: The plain name of the device's dtype, such as ``bfloat16``.
        name: Of the row: ``Functional.silu.0.forward.output.0``.
        standard: One of `STANDARDS`. 26.2 rounds the reference to the precision in which the release computes it.
        mindspore: Whether 26.2 shall judge as it does for MindSpore.
    """
    if standard == RELEASE and mindspore:
        return release.judge_mindspore(result, reference, dtype, name)
    if standard == RELEASE:
        return release.judge(base, result, reference, dtype, name)
    return documented.judge(base, result, reference, dtype, name)
