"""An NPU's details judged by a GPU's as msProbe 26.2.0 does it, with its defects: ``--rules msprobe``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probe.common.report.csv_lines import Cell
from probe.msprobe_rules.output.comparisons import COLUMNS, RATIOS, ComparisonRow
from probe.msprobe_rules.output.details import (
    ERROR,
    METRICS,
    PASS,
    SKIP,
    DetailsRow,
    by_name,
    case_and_direction,
    is_exact,
)
from probe.msprobe_rules.output.results import ResultRow
from probe.msprobe_rules.precheck.constants import V26_2
from probe.msprobe_rules.precheck.ratio_limits import ABSOLUTE_THRESHOLD, BENCHMARK, BINARY, ULP, ratio_limits

_UNSUPPORTED = "This data type does not support benchmark compare."
_BLANK = "ERROR: Input data is an empty string"
_DIRECTIONS = ("forward", "backward")
_RATES = {"inf_nan_rate": "inf_nan_verdict", "rel_rate": "rel_verdict", "abs_rate": "abs_verdict"}
_ULP_SHARE = 0.001


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
