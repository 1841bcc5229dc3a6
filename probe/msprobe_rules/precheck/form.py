"""The two tables of a pre-check, and the lines of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from probe.common import files
from probe.common.report.csv_lines import Cell
from probe.msprobe_rules.precheck import details
from probe.msprobe_rules.precheck.details import METRICS, SECOND_STAGE_HEADINGS, DetailsRow, ResultRow, result_line
from probe.msprobe_rules.precheck.layout import PLAIN, TableLayout, headings


@dataclass(frozen=True)
class Form:
    """The form of the tables of a run.

    Attributes:
        layout: Headings, numbers and line ends.
        mindspore: The details have the nine columns that msProbe writes for MindSpore.
    """

    layout: TableLayout = PLAIN
    mindspore: bool = False

    def heading_of_details(self) -> bytes:
        """The first line of the details."""
        return self.layout.heading_line(details.MINDSPORE_HEADINGS if self.mindspore else details.HEADINGS)

    def heading_of_results(self) -> bytes:
        """The first line of the results."""
        return self.layout.heading_line(details.SECOND_STAGE_HEADINGS if self.mindspore else details.RESULT_HEADINGS)

    def lines(self, rows: Iterable[DetailsRow]) -> bytes:
        """Rows of the details."""
        line = details.mindspore_line if self.mindspore else details.details_line
        return b"".join(line(row, self.layout) for row in rows)

    def result_line(self, row: ResultRow) -> bytes:
        """A row of the results."""
        return details.result_line(row, self.layout, four_cells=self.mindspore)


def table_paths(folder: str, time: str) -> tuple[str, str]:
    """The paths of the results and of the details of a run that began at this time, which has 14 digits."""
    result, output_gradients = (f"accuracy_checking_{kind}_{time}.csv" for kind in ("result", "details"))
    return os.path.join(folder, result), os.path.join(folder, output_gradients)


# --- comparisons


RATIOS: Mapping[str, str] = {
    "small_value_share": "small_value",
    "rmse": "rmse",
    "max_rel": "max_rel",
    "mean_rel": "mean_rel",
    "error_balance": "error_balance",
}
"""The metrics that are divided by the GPU's, and how their two columns begin."""

COLUMNS: Mapping[str, str] = {
    "API Name": "API Name",
    "small_value_ratio": "小值域错误比值",
    "small_value_verdict": "小值域判定结果",
    "rmse_ratio": "均方根误差比值",
    "rmse_verdict": "均方根误差判定结果",
    "max_rel_ratio": "相对误差最大值比值",
    "max_rel_verdict": "相对误差最大值判定结果",
    "mean_rel_ratio": "相对误差平均值比值",
    "mean_rel_verdict": "相对误差平均值判定结果",
    "error_balance_ratio": "误差均衡性比值",
    "error_balance_verdict": "误差均衡性判定结果",
    "inf_nan_rate": METRICS["inf_nan_rate"],
    "inf_nan_verdict": "inf/nan判定结果",
    "rel_rate": METRICS["rel_rate"],
    "rel_verdict": "相对误差判定结果",
    "abs_rate": METRICS["abs_rate"],
    "abs_verdict": "绝对误差判定结果",
    "binary_error_rate": METRICS["binary_error_rate"],
    "binary_verdict": "二进制一致错误率判定结果",
    "mean_ulp": METRICS["mean_ulp"],
    "ulp_share": METRICS["ulp_share"],
    "ulp_share_ratio": "ULP误差大于阈值占比比值",
    "ulp_verdict": "ULP误差判定结果",
    "dual_1000": METRICS["dual_1000"],
    "dual_1000_verdict": "双千指标判定结果",
    "result": "比对结果",
    "method": "比对算法",
    "Message": "Message",
}
"""The columns of the details in order, and what msProbe calls them."""

METHODS: Mapping[str, str] = {
    "binary": "二进制一致法",
    "absolute_threshold": "绝对阈值法",
    "ulp": "ULP误差比对法",
    "dual_1000": "双千指标法",
    "benchmark": "标杆比对法",
}
"""The methods, and what msProbe calls them."""

_TIME = "%Y%m%d%H%M%S"


@dataclass(frozen=True)
class ComparisonRow:
    """The row of one output in the second stage.

    Attributes:
        name: ``Functional.silu.0.forward.output.0``.
        status: `PASS`, `ERROR` or `SKIP`.
        method: One of `METHODS`, or "" of what is not judged.
        cells: Of the columns between, by heading.
    """

    name: str
    status: str
    method: str = ""
    message: str = ""
    cells: Mapping[str, Cell] = field(default_factory=dict)


def comparison_line(row: ComparisonRow, layout: TableLayout) -> bytes:
    """A row of the details."""
    method = METHODS.get(row.method) if layout.is_msprobe else row.method
    known: dict[str, Cell] = {
        "API Name": row.name, "result": row.status, "method": method or None, "Message": row.message
    }  # fmt: skip
    return layout.line([known.get(column, row.cells.get(column)) for column in COLUMNS])


def write(
    folder: str,
    rows: Sequence[ComparisonRow],
    results: Sequence[ResultRow],
    layout: TableLayout,
    now: datetime | None = None,
) -> tuple[str, str]:
    """Write ``api_precision_compare_details_<time>.csv`` and ``..._result_<time>.csv``; gives both paths.

    Raises:
        FileCheckException: the folder cannot be made.
        OSError: a file cannot be written.
    """
    files.make_folder(folder)
    paths = _free_paths(folder, now or datetime.now())
    with files.replacing(paths[0]) as stream:
        stream.write(layout.heading_line(headings(COLUMNS)))
        for row in rows:
            stream.write(comparison_line(row, layout))
    with files.replacing(paths[1]) as stream:
        stream.write(layout.heading_line(SECOND_STAGE_HEADINGS))
        for result in results:
            stream.write(result_line(result, layout, four_cells=True))
    return paths[0], paths[1]


def _free_paths(folder: str, time: datetime) -> list[str]:
    """Names that no file in `folder` has yet, of the first second from `time` on that has both."""
    while True:
        names = [f"api_precision_compare_{kind}_{time.strftime(_TIME)}.csv" for kind in ("details", "result")]
        paths = [os.path.join(folder, name) for name in names]
        if not any(os.path.lexists(path) for path in paths):
            return paths
        time += timedelta(seconds=1)
