"""The drop-in rows of one device by our own verdicts: the metrics of msProbe, and the statuses of the pre-check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.calls.judged_results import JudgedResult
from probe.calls.verdict.subject import EXACT, NOT_RUN, SEVERITY, SUSPECT
from probe.calls.verdict.subject import PASS as CALL_PASS
from probe.msprobe_rules.output.details import ERROR, PASS, SKIP, WARNING, DetailsRow
from probe.msprobe_rules.precheck.class_metrics import Benchmark, Binary, Dual, Metrics, measure, overall
from probe.msprobe_rules.precheck.constants import REFERENCE_DTYPES, V26_2
from probe.msprobe_rules.precheck.outputs import Output, Tensor, is_sequence, plain_row

Array = NDArray[Any]

_STATUS = {NOT_RUN: SKIP, EXACT: PASS, CALL_PASS: PASS, SUSPECT: WARNING}
"""The statuses of verdicts in msProbe's words; all others are errors."""


def worst_of(statuses: list[str]) -> str:
    """The status of a case: its worst; SKIP where nothing was judged."""
    return next((status for status in (ERROR, WARNING, PASS) if status in statuses), SKIP)


def by_verdicts(rows: Sequence[DetailsRow], judged: Sequence[JudgedResult]) -> list[DetailsRow]:
    """The rows with the statuses and the words of our verdicts on the same results.

    Args:
        rows: Rows of outputs or gradients.
        judged: Verdicts by the names of rows; one of a whole list stands for each of its items.
    """
    return [_by_verdict(row, [each for each in judged if _is_of(each.name, row.name)]) for row in rows]


def _is_of(judged: str, name: str) -> bool:
    return f"{judged}.".startswith(f"{name}.") or name.startswith(f"{judged}.")


def _by_verdict(row: DetailsRow, judged: Sequence[JudgedResult]) -> DetailsRow:
    verdicts = sorted((each.verdict for each in judged), key=lambda verdict: SEVERITY[verdict.status])
    if not verdicts:
        return replace(row, status=SKIP)
    worst = verdicts[-1]
    return replace(row, status=_STATUS.get(worst.status, ERROR), message=worst.interpretation)


def measured_output(base: str, result: Output, reference: Output, prefix: str, mindspore: bool) -> Iterator[DetailsRow]:
    """The rows of everything that an API returned, without a status.

    Args:
        base: The API: ``Functional.silu``.
        result: The output of the device.
        reference: The reference; the values of its tensors are of higher precision.
        prefix: The beginning of the names of rows: ``Functional.silu.0.forward.output``; a number follows.
        mindspore: Without effect.
    """
    if not is_sequence(result) or not is_sequence(reference):
        prefix = f"{prefix}.0"
    return _measured_item(base, result, reference, prefix)


def _measured_item(base: str, result: Output, reference: Output, name: str) -> Iterator[DetailsRow]:
    if isinstance(result, Mapping) and isinstance(reference, Mapping) and set(result) == set(reference):
        for key in reference:
            yield from _measured_item(base, result[key], reference[key], f"{name}.{key}")
    elif is_sequence(result) and is_sequence(reference) and len(result) == len(reference):
        for index, (one, other) in enumerate(zip(result, reference)):
            yield from _measured_item(base, one, other, f"{name}.{index}")
    elif isinstance(result, Tensor) and isinstance(reference, Tensor):
        yield measured_tensor(base, result.values, reference.values, result.dtype, name)
    elif result is None or type(result) is not type(reference) or isinstance(result, Mapping) or is_sequence(result):
        yield DetailsRow(name, "", "there is no output." if result is reference is None else "")
    else:
        yield plain_row(result, reference, name)


def measured_tensor(base: str, result: Array, reference: Array, dtype: str, name: str) -> DetailsRow:
    """The row of one tensor, without a status.

    Args:
        base: The API: ``Functional.silu``.
        result: The values of the device; a dtype that NumPy lacks, such as bfloat16, is held in float32.
        reference: The values of higher precision: float64 or complex128, or the integer or bool dtype of the result.
        dtype: The plain name of the device's dtype, such as ``bfloat16``.
        name: The name of the row: ``Functional.silu.0.forward.output.0``.
    """
    metrics: Metrics = {}
    if result.shape == reference.shape and result.size and "dropout" not in base:
        metrics = _metrics(result, reference, dtype)
    return DetailsRow(name, "", "", reference.dtype.name, dtype, result.shape, metrics)


def _metrics(result: Array, reference: Array, dtype: str) -> Metrics:
    kinds = {result.dtype.kind, reference.dtype.kind}
    if kinds <= set("biu"):
        return measure(result, reference, [Binary()], dtype, None)
    if kinds == {"c"}:
        dtype = "float32" if dtype == "complex64" else "float64"
        result, reference = (np.stack([each.real, each.imag], axis=-1) for each in (result, reference))
        result = result.astype(dtype)
    if result.dtype.kind != "f" or reference.dtype.kind != "f" or dtype not in REFERENCE_DTYPES:
        return {}
    # float64 has none; the reference is no better than the result.
    constants = V26_2.get(dtype, V26_2["float32"])
    meters = [overall(result, reference), Dual((100, 1000, 10000)), Benchmark(constants)]
    return measure(result, reference, meters, dtype, constants, _without_equal_specials)


def _without_equal_specials(result: Array, reference: Array) -> tuple[Array, Array]:
    """Both with 0 where both are NaN, or the same infinity in the dtype of the result."""
    if np.isfinite(result).all():
        return result, reference
    cast = reference.astype(result.dtype)
    equal = ~np.isfinite(result) & ((result == cast) | (np.isnan(result) & np.isnan(cast)))
    return np.where(equal, 0, result), np.where(equal, 0, reference)
