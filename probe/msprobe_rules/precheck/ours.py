"""The drop-in rows by our own verdicts: one device with msProbe's metrics, and an NPU judged by a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.calls.judged_results import JudgedResult
from probe.calls.verdict.subject import EXACT, NOT_RUN, SEVERITY, SUSPECT
from probe.calls.verdict.subject import PASS as CALL_PASS
from probe.common.report.csv_lines import Cell
from probe.msprobe_rules.precheck.class_metrics import (
    BENCHMARK,
    BINARY,
    REFERENCE_DTYPES,
    V26_2,
    Benchmark,
    Binary,
    Dual,
    Metrics,
    Output,
    Tensor,
    is_sequence,
    measure,
    overall,
    plain_row,
    ratio_limits,
)
from probe.msprobe_rules.precheck.details import (
    ERROR,
    PASS,
    SKIP,
    WARNING,
    DetailsRow,
    ResultRow,
    by_name,
    case_and_direction,
    is_exact,
)
from probe.msprobe_rules.precheck.form import RATIOS, ComparisonRow

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


# --- our two device


_NEEDED: Mapping[str, tuple[str, ...]] = {BINARY: ("binary_error_rate",), BENCHMARK: tuple(RATIOS)}


def compare(npu: Sequence[DetailsRow], gpu: Sequence[DetailsRow]) -> tuple[list[ComparisonRow], list[ResultRow]]:
    """Judge every row of the NPU by that of the GPU with the same name.

    Args:
        npu: Rows as `read_details` gives them.
        gpu: The same of the other file. A row that one file lacks is listed as SKIP.

    Returns:
        Rows of the details and of the results, in the order of the NPU's.

    Raises:
        MsprobeException: a name stands twice in one file.
    """
    of_npu, of_gpu = by_name(npu, "NPU"), by_name(gpu, "GPU")
    rows = [_compared(name, of_npu.get(name), of_gpu.get(name)) for name in {**of_npu, **of_gpu}]
    cases: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        cases.setdefault(case_and_direction(row.name)[0], []).append(row)
    return rows, [_result(case, of_case) for case, of_case in cases.items()]


def _result(case: str, rows: Sequence[ComparisonRow]) -> ResultRow:
    of = {"forward": list[str](), "backward": list[str]()}
    for row in rows:
        of.setdefault(case_and_direction(row.name)[1] or "forward", []).append(row.status)
    forward, backward = (worst_of(statuses) if statuses else None for statuses in (of["forward"], of["backward"]))
    worst = worst_of([status for status in (forward, backward) if status])
    return ResultRow(case, forward, backward, next((row.message for row in rows if row.status == worst), ""))


def _compared(name: str, npu: DetailsRow | None, gpu: DetailsRow | None) -> ComparisonRow:
    """The row of one output, of which one side may be missing."""
    if npu is None or gpu is None:
        return ComparisonRow(name, SKIP, message=f"the file of the {'NPU' if npu is None else 'GPU'} has no such row.")
    if npu.status == SKIP:
        return ComparisonRow(name, SKIP, message=npu.message or "the NPU was not run.")
    if gpu.status == SKIP:
        return ComparisonRow(name, SKIP, message=f"the GPU was not run: {gpu.message.strip() or 'no reason given.'}")
    unlike = _unlike(npu, gpu)
    if unlike:
        return ComparisonRow(name, ERROR, message=unlike)
    judged = _judged(npu, gpu)
    wrong = _wrong_on_npu(npu, gpu, bool(judged.method))
    if not wrong:
        return judged
    return ComparisonRow(name, ERROR, judged.method, f"{wrong} {judged.message}".strip(), judged.cells)


def _unlike(npu: DetailsRow, gpu: DetailsRow) -> str:
    """The mismatch that makes the metrics of the two incomparable; "" if there is none."""
    if npu.device_dtype != gpu.device_dtype:
        return f"the NPU's dtype is {npu.device_dtype or 'none'}, the GPU's {gpu.device_dtype or 'none'}."
    if npu.shape != gpu.shape:
        return f"the NPU's shape is {npu.shape}, the GPU's {gpu.shape}."
    return ""


def _wrong_on_npu(npu: DetailsRow, gpu: DetailsRow, can_be_judged: bool) -> str:
    """The reason why the NPU is wrong, whatever the ratios; "" if there is none.

    An error on both machines may be a badly conditioned call, of which the ratios tell more.
    """
    if npu.status == ERROR and (gpu.status != ERROR or not can_be_judged):
        return f"an error in the first stage: {npu.message.strip() or 'no reason given.'}"
    if _has_special(npu) and not _has_special(gpu):
        # They are masked out of every metric that has a ratio.
        return "NaN or infinity on the NPU, and none on the GPU."
    return ""


def _has_special(row: DetailsRow) -> bool:
    return not all(math.isfinite(row.metrics.get(metric, 0)) for metric in ("cosine", "max_abs"))


def _judged(npu: DetailsRow, gpu: DetailsRow) -> ComparisonRow:
    base, dtype = npu.case.rpartition(".")[0], npu.device_dtype
    method = BINARY if is_exact(dtype) else BENCHMARK
    if method == BENCHMARK and dtype not in V26_2:
        return ComparisonRow(npu.name, SKIP, message=f"there are no limits for {dtype}.")
    if _lacking(method, gpu):
        return ComparisonRow(npu.name, npu.status, message="the GPU has no metrics: the first stage decides.")
    if _lacking(method, npu):
        return ComparisonRow(npu.name, SKIP, message=f"the NPU has no {', '.join(_lacking(method, npu))}.")
    judged = _by_equality(npu, base) if method == BINARY else _by_ratios(npu, gpu, base)
    return ComparisonRow(npu.name, judged.status, method, judged.message, judged.cells)


def _lacking(method: str, row: DetailsRow) -> list[str]:
    """The metrics that a method needs and a row lacks."""
    return [name for name in _NEEDED[method] if name not in row.metrics]


def _by_equality(npu: DetailsRow, base: str) -> ComparisonRow:
    rate = npu.metrics["binary_error_rate"]
    # Where it quantises the first stage allows a difference of one, and then says pass of a rate.
    status = PASS if rate == 0 or ("quant" in base and npu.status == PASS) else ERROR
    message = "" if status == PASS else f"{rate:.2%} of the elements are not equal."
    return ComparisonRow(npu.name, status, message=message, cells={"binary_error_rate": rate, "binary_verdict": status})


def _by_ratios(npu: DetailsRow, gpu: DetailsRow, base: str) -> ComparisonRow:
    limits = ratio_limits(base)
    floor = V26_2[npu.device_dtype].floor
    cells: dict[str, Cell] = {}
    wrong = []
    for metric, column in RATIOS.items():
        of_npu, of_gpu = npu.metrics[metric], gpu.metrics[metric]
        if math.isfinite(of_npu) and math.isfinite(of_gpu):
            ratio = abs(of_npu) / max(abs(of_gpu), floor)
        else:
            ratio = 1.0 if str(float(of_npu)) == str(float(of_gpu)) else math.inf
        passes = ratio <= limits[metric]
        cells[f"{column}_ratio"], cells[f"{column}_verdict"] = ratio, PASS if passes else ERROR
        if not passes and metric != "error_balance":
            wrong.append(f"{metric} is {ratio:.3g} times the GPU's; allowed: {limits[metric]:g}.")
    return ComparisonRow(npu.name, ERROR if wrong else PASS, message=" ".join(wrong), cells=cells)
