"""The verdicts of msProbe 26.2.0 on one device and on two, with their defects: ``--rules msprobe``.

The order of the questions, their limits and the messages are the release's; scripts look for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.report.csv_lines import Cell
from probe.msprobe_rules.precheck.class_metrics import (
    ABSOLUTE_THRESHOLD,
    BENCHMARK,
    BINARY,
    REFERENCE_DTYPES,
    ULP,
    V26_2,
    Benchmark,
    Binary,
    Dual,
    Metrics,
    Output,
    Tensor,
    is_sequence,
    is_zero,
    measure,
    overall,
    plain_row,
    ratio_limits,
)
from probe.msprobe_rules.precheck.details import (
    ERROR,
    METRICS,
    PASS,
    SKIP,
    WARNING,
    DetailsRow,
    ResultRow,
    by_name,
    case_and_direction,
    is_exact,
)
from probe.msprobe_rules.precheck.form import COLUMNS, RATIOS, ComparisonRow

Array = NDArray[Any]

NO_REFERENCE = "Bench output is None, skip this test."
TYPES_DIFFER = "bench and npu output type is different."
_EMPTY = "There is not bench calculation result."
_ABSOLUTE = 0.001
"""A bound of msProbe 26.2.0; observed."""
_MINDSPORE_ABSOLUTE = 0.0001
"""A bound of msProbe 26.2.0 with MindSpore; observed."""
_COSINE = 0.99
"""A bound of msProbe 26.2.0; observed."""
_DROPOUT_SHARE, _DROPOUT_ELEMENTS = 0.1, 100
_GO_ON = ", skip other check and set to SPACE."


def classify_output(
    base: str, result: Output, reference: Output, prefix: str, mindspore: bool = False
) -> Iterator[DetailsRow]:
    """The rows of everything that an API returned; the arguments are those of `ours.measured_output`.

    Args:
        mindspore: True to judge as the release does for MindSpore.

    Raises:
        IndexError: 26.2.0 ends so where the device returned fewer items than the reference.
    """
    if is_sequence(reference) and is_sequence(result):
        for index, item in enumerate(reference):
            yield _classify_item(base, result[index], item, f"{prefix}.{index}", mindspore)
    else:
        yield _classify_item(base, result, reference, f"{prefix}.0", mindspore)


def _classify_item(base: str, result: Output, reference: Output, name: str, mindspore: bool) -> DetailsRow:
    if result is None and reference is None:
        return DetailsRow(name, SKIP, NO_REFERENCE)
    if type(result) is not type(reference):
        return DetailsRow(name, ERROR, TYPES_DIFFER)
    if isinstance(result, Tensor) and isinstance(reference, Tensor):
        return _judge_tensor(base, result, reference, name, mindspore)
    if isinstance(result, Mapping) and isinstance(reference, Mapping) and result.keys() != reference.keys():
        return DetailsRow(name, ERROR, "bench and npu output dict keys are different.")
    if isinstance(result, Mapping) or is_sequence(result):
        # Of a dict it takes the values as a list, and of a list in a list it knows nothing.
        return DetailsRow(name, ERROR, "Unexpected output type in compare_core: <class 'list'>")
    return plain_row(result, reference, name)


def _judge_tensor(base: str, result: Tensor, reference: Tensor, name: str, mindspore: bool) -> DetailsRow:
    if mindspore:
        return classify_mindspore_tensor(result.values, reference.values, result.dtype, name)
    return classify_tensor(base, result.values, reference.values, result.dtype, name)


def classify_tensor(base: str, result: Array, reference: Array, dtype: str, name: str) -> DetailsRow:
    """The row of one tensor; the arguments are those of `ours.measured_tensor`.

    The reference is rounded to the precision in which the release computes it.
    """
    reference = in_reference_precision(reference, dtype)
    status, message, metrics = _verdict(base, result, reference, dtype)
    return DetailsRow(name, status, message, reference.dtype.name, dtype, result.shape, metrics)


def classify_mindspore_tensor(result: Array, reference: Array, dtype: str, name: str) -> DetailsRow:
    """The row of one tensor of MindSpore: the release asks two questions, with a reference of no more precision."""
    bench = reference.astype(result.dtype, copy=False)
    metrics: Metrics = {}
    status, message = ERROR, f"the shapes differ: {result.shape} and {bench.shape}."
    if result.shape == bench.shape:
        status, message = SKIP, _EMPTY
        if result.size:
            one, other = (values.reshape(-1).astype(np.float64) for values in (result, bench))
            with np.errstate(all="ignore"):
                metrics = _mindspore_metrics(one, other)
            alike = metrics["cosine"] > _COSINE and metrics["max_abs"] < _MINDSPORE_ABSOLUTE
            status, message = (PASS if alike else ERROR), ""
    return DetailsRow(name, status, message, dtype, dtype, result.shape, metrics)


def _mindspore_metrics(result: Array, reference: Array) -> Metrics:
    lengths = float(np.linalg.norm(result) * np.linalg.norm(reference))
    error = np.abs(result - reference)
    return {
        "cosine": float(result.dot(reference)) / lengths if lengths else float(np.array_equal(result, reference)),
        "max_abs": float(error.max()),
        "max_rel": float((error / np.maximum(np.abs(reference), np.finfo(np.float32).eps)).max()),
    }


def in_reference_precision(reference: Array, dtype: str) -> Array:
    """The reference as the release computes it: in float32 for half precision, otherwise no wider than it is given."""
    if reference.dtype.kind == "f" and dtype in REFERENCE_DTYPES:
        return reference.astype(REFERENCE_DTYPES[dtype], copy=False)
    if reference.dtype.kind == "c" and dtype.startswith("complex"):
        return reference.astype(dtype, copy=False)
    return reference


def worst_of(statuses: list[str]) -> str:
    """The status of a case: the last one that is neither pass nor SKIP, so that a warning hides an error before it."""
    return next((status for status in reversed(statuses) if status not in (PASS, SKIP)), PASS)


def _verdict(base: str, result: Array, reference: Array, dtype: str) -> tuple[str, str, Metrics]:
    if result.shape != reference.shape:
        bench, device = list(reference.shape), list(result.shape)
        return ERROR, f"The shape of benchtorch.Size({bench}) and nputorch.Size({device}) not equal.", {}
    if not reference.size:
        return SKIP, _EMPTY, {}
    kinds = {result.dtype.kind, reference.dtype.kind}
    if kinds <= set("biu"):
        metrics = measure(result, reference, [Binary()], dtype, None)
        # Three operators that quantise may be off by one, which rounding half a step explains.
        equal = metrics["binary_error_rate"] == 0 or ("quant" in base and _off_by_one(result, reference))
        message = f"Current {reference.dtype.name} data, only perform binary comparison."
        return (PASS if equal else ERROR), message, metrics
    if kinds != {"f"} or dtype not in REFERENCE_DTYPES:
        of_device = result.dtype.name if result.dtype.kind != "f" else dtype
        kinds_differ = f"Bench out dtype is {reference.dtype.name} but npu output dtype is {of_device}, cannot compare."
        return ERROR, kinds_differ, {}
    if "dropout" in base:
        return (PASS if _drops_as_much(result, reference) else ERROR), "", {}
    return _float_verdict(result, reference, dtype)


def _float_verdict(result: Array, reference: Array, dtype: str) -> tuple[str, str, Metrics]:
    constants = V26_2.get(dtype)
    shares = (100, 1000) if dtype in ("float16", "bfloat16") else (1000, 10000)
    sizes, dual = overall(result, reference, scaled=True), Dual(shares)
    meters = [sizes, dual, *([Benchmark(constants)] if constants else [])]
    metrics = measure(result, reference, meters, dtype, constants)
    begin = "" if constants else f"The data type torch.{dtype} is not supported for new precision standard."
    alike, remark = _cosine(metrics.get("cosine"), sizes.largest, result.size)
    decided = {key: value for key, value in metrics.items() if key not in ("max_abs", *dual.metrics())}
    if not alike:
        return ERROR, f"{begin}{remark}\nCosine similarity is less than 0.99, consider as error{_GO_ON}\n", decided
    decided["max_abs"] = metrics["max_abs"]
    if metrics["max_abs"] < _ABSOLUTE:
        return PASS, f"{begin}{remark}\nMax abs error is less than 0.001, consider as pass{_GO_ON}\n", decided
    status, message = _by_shares(metrics, shares)
    if status == ERROR and shares[0] == 100:
        # In half precision the second share is not looked at then.
        del metrics["dual_1000"]
    return status, f"{begin}{remark}\n{message}\n", metrics


def _cosine(cosine: float | None, largest: tuple[float, float], size: int) -> tuple[bool, str]:
    """True if the cosine lets the comparison go on, and the message on it."""
    result_is_zero, reference_is_zero = map(is_zero, largest)
    if result_is_zero and reference_is_zero:
        return True, "All the data in device and bench outputs are zero."
    if result_is_zero:
        return False, "All the data is zero in device dump data."
    if reference_is_zero:
        return False, "All the data is zero in bench dump data."
    if size == 1:
        return True, "All the data in device dump data is scalar. Please refer to other compare algorithms."
    if cosine is None or math.isnan(cosine):
        return True, "Dump data has NaN when comparing with Cosine Similarity."
    return cosine > _COSINE, ""


def _by_shares(metrics: Metrics, shares: tuple[int, int]) -> tuple[str, str]:
    wide, narrow = shares
    if not metrics[f"dual_{wide}"] > 1 - 1 / wide:
        return ERROR, f"Relative error is greater than {1 / wide}, consider as error{_GO_ON}"
    if not metrics[f"dual_{narrow}"] > 1 - 1 / narrow:
        return WARNING, f"Relative error is greater than {1 / narrow}, consider as warning{_GO_ON}"
    end = _GO_ON if narrow == 1000 else "."
    return PASS, f"Relative error is less than {1 / narrow}, consider as pass{end}"


def _drops_as_much(result: Array, reference: Array) -> bool:
    if result.size < _DROPOUT_ELEMENTS:
        return True
    shares = [np.count_nonzero(values == 0) / values.size for values in (result, reference)]
    return bool(abs(shares[0] - shares[1]) < _DROPOUT_SHARE)


def _off_by_one(result: Array, reference: Array) -> bool:
    return bool((np.abs(result.astype(np.int64) - reference.astype(np.int64)) <= 1).all())


# --- v26 2 two device


_UNSUPPORTED = "This data type does not support benchmark compare."
_BLANK = "ERROR: Input data is an empty string"
_DIRECTIONS = ("forward", "backward")
_RATES = {"inf_nan_rate": "inf_nan_verdict", "rel_rate": "rel_verdict", "abs_rate": "abs_verdict"}
_ULP_SHARE = 0.001
"""A bound of msProbe 26.2.0; observed."""


def compare(npu: Sequence[DetailsRow], gpu: Sequence[DetailsRow]) -> tuple[list[ComparisonRow], list[ResultRow]]:
    """Rows of the details and of the results; rows that one side lacks are left out.

    Raises:
        MsprobeException: a name stands twice in one file.
    """
    by_name(npu, "NPU")
    of_gpu = by_name(gpu, "GPU")
    rows: list[ComparisonRow] = []
    results: list[ResultRow] = []
    of_case: list[tuple[DetailsRow, ComparisonRow]] = []
    for row in npu:
        if row.name not in of_gpu:
            continue
        compared = _compared(row, of_gpu[row.name])
        rows.append(compared)
        if compared.message == _BLANK:
            # The release gives such an output a result of its own, before that of the case it is in.
            results.append(ResultRow(row.name, SKIP, SKIP, _BLANK))
            continue
        if of_case and of_case[0][0].case != row.case:
            results.append(_result(of_case))
            of_case = []
        of_case.append((row, compared))
    return rows, results + ([_result(of_case)] if of_case else [])


def _compared(npu: DetailsRow, gpu: DetailsRow) -> ComparisonRow:
    dtype = npu.device_dtype
    if not dtype:
        return ComparisonRow(npu.name, SKIP, message=npu.message)
    if _is_unsupported(dtype):
        # An empty cell is a float to the release, and that float prints so.
        return ComparisonRow(npu.name, SKIP, message=npu.message or "nan")
    if is_exact(dtype):
        return _by_equality(npu)
    if dtype.startswith("float8"):
        share = npu.metrics.get("ulp_share", 0)
        status = PASS if share < _ULP_SHARE else ERROR
        message = "" if status == PASS else "ERROR: ULP误差不满足标准\n"
        return ComparisonRow(npu.name, status, ULP, message, {"ulp_share": float(share), "ulp_verdict": status})
    if any(rate in npu.metrics for rate in _RATES):
        return _by_rates(npu)
    return _by_ratios(npu, gpu)


def _is_unsupported(dtype: str) -> bool:
    return dtype == "float64" or dtype.startswith("complex")


def _by_equality(npu: DetailsRow) -> ComparisonRow:
    rate = npu.metrics.get("binary_error_rate")
    if rate is None:
        return ComparisonRow(npu.name, SKIP, message=_BLANK)
    status = PASS if rate == 0 else ERROR
    message = "" if status == PASS else f"ERROR: {METRICS['binary_error_rate']}超过阈值\n"
    # The number is shown as it stands in the file.
    cells = {"binary_error_rate": npu.texts.get("binary_error_rate", rate), "binary_verdict": status}
    return ComparisonRow(npu.name, status, BINARY, message, cells)


def _by_rates(npu: DetailsRow) -> ComparisonRow:
    if not all(rate in npu.metrics for rate in _RATES):
        return ComparisonRow(npu.name, SKIP, message=_BLANK)
    cells: dict[str, Cell] = {}
    wrong = []
    for rate, verdict in _RATES.items():
        cells[rate] = float(npu.metrics[rate])
        cells[verdict] = PASS if npu.metrics[rate] == 0 else ERROR
        if cells[verdict] == ERROR:
            wrong.append(f"ERROR: {METRICS[rate]}超过阈值")
    return ComparisonRow(npu.name, ERROR if wrong else PASS, ABSOLUTE_THRESHOLD, "".join(wrong), cells)


def _by_ratios(npu: DetailsRow, gpu: DetailsRow) -> ComparisonRow:
    limits = ratio_limits(npu.case.rpartition(".")[0], as_written=True)
    constants = V26_2.get(npu.device_dtype, V26_2["float32"])
    cells: dict[str, Cell] = {}
    remarks, wrong = [], []
    for metric, column in RATIOS.items():
        of_npu, of_gpu = float(npu.metrics.get(metric, 0)), float(gpu.metrics.get(metric, 0))
        if math.isfinite(of_npu) and math.isfinite(of_gpu):
            ratio = abs(of_npu) / max(abs(of_gpu), constants.floor)
            passes = ratio <= limits[metric]
        else:
            ratio = math.nan
            passes = of_npu == of_gpu or (math.isnan(of_npu) and math.isnan(of_gpu))
            remarks.append(f"{METRICS[metric]}{'同为同号inf或nan' if passes else 'inf或nan不一致'}\n")
        cells[f"{column}_ratio"], cells[f"{column}_verdict"] = ratio, PASS if passes else ERROR
        if not passes and metric != "error_balance":
            wrong.append(f"ERROR: {COLUMNS[f'{column}_ratio']}超过阈值\n")
    return ComparisonRow(npu.name, ERROR if wrong else PASS, BENCHMARK, "".join([*remarks, *wrong]), cells)


def _result(pairs: Sequence[tuple[DetailsRow, ComparisonRow]]) -> ResultRow:
    case = pairs[0][0].case
    if _is_unsupported(pairs[-1][0].device_dtype):
        # Whatever was said of the outputs before.
        return ResultRow(case, SKIP, SKIP, _UNSUPPORTED)
    counted = [pair for pair in pairs if not _is_unsupported(pair[0].device_dtype)]
    forward, backward = (
        [row for _, row in counted if case_and_direction(row.name)[1] == direction] for direction in _DIRECTIONS
    )
    skipped = next((row.message for row in forward if row.status == SKIP), "") if _worst(forward) == SKIP else ""
    return ResultRow(case, _worst(forward), _worst(backward), skipped)


def _worst(rows: Sequence[ComparisonRow]) -> str | None:
    return next((status for status in (ERROR, PASS, SKIP) if any(row.status == status for row in rows)), None)
