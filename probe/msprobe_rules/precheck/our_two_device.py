"""An NPU's details judged by a GPU's: by the ratios of msProbe, and by what these do not show.

A status of the first stage counts, and so do a NaN or an infinity on the NPU alone, another dtype and another shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from probe.common.report.csv_lines import Cell
from probe.msprobe_rules.output.comparisons import RATIOS, ComparisonRow
from probe.msprobe_rules.output.details import ERROR, PASS, SKIP, DetailsRow, by_name, case_and_direction, is_exact
from probe.msprobe_rules.output.results import ResultRow
from probe.msprobe_rules.precheck.constants import V26_2
from probe.msprobe_rules.precheck.our_outputs import worst_of
from probe.msprobe_rules.precheck.ratio_limits import BENCHMARK, BINARY, ratio_limits

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
        return ComparisonRow(npu.name, npu.status, message="the GPU has no metrics: what the first stage says stands.")
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
