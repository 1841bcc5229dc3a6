"""The tables of details and of results: a row for each output and gradient, and one for each case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probe.common.errors import MsprobeException
from probe.common.numerics.formats import format_of, plain_name
from probe.common.report.csv_lines import Cell
from probe.msprobe_rules.precheck.layout import Heading, Number, TableLayout, TableRow, headings, read

PASS, WARNING, ERROR, SKIP = "pass", "warning", "error", "SKIP"
"""The states of a row and a case; SKIP is spelled as msProbe does, since scripts look for it."""

METRICS: Mapping[str, str] = {
    "cosine": "余弦相似度",
    "max_abs": "最大绝对误差",
    "dual_100": "双百指标",
    "dual_1000": "双千指标",
    "dual_10000": "双万指标",
    "binary_error_rate": "二进制一致错误率",
    "error_balance": "误差均衡性",
    "rmse": "均方根误差",
    "small_value_share": "小值域错误占比",
    "max_rel": "相对误差最大值",
    "mean_rel": "相对误差平均值",
    "inf_nan_rate": "inf/nan错误率",
    "rel_rate": "相对误差错误率",
    "abs_rate": "绝对误差错误率",
    "max_ulp": "ULP误差最大值",
    "mean_ulp": "ULP误差平均值",
    "ulp_share": "ULP误差大于阈值占比",
}
"""The metrics in the order of the table, and what msProbe calls them."""

_NAME, _BENCH_DTYPE, _DEVICE_DTYPE, _SHAPE, _STATUS, _MESSAGE = (
    "API Name", "Bench Dtype", "DEVICE Dtype", "Shape", "Status", "Message",
)  # fmt: skip
HEADINGS = headings(
    {
        **{name: name for name in (_NAME, _BENCH_DTYPE, _DEVICE_DTYPE, _SHAPE)},
        **METRICS,
        **{name: name for name in (_STATUS, _MESSAGE)},
    }
)
# MindSpore's table has seven columns of these less, and three under other names.
MINDSPORE_HEADINGS = headings(
    {
        **{_NAME: _NAME, _BENCH_DTYPE: _BENCH_DTYPE, _DEVICE_DTYPE: "Tested Dtype", _SHAPE: _SHAPE},
        **{"cosine": "Cosine", "max_abs": "MaxAbsErr", "max_rel": "MaxRelativeErr"},
        **{_STATUS: _STATUS, _MESSAGE: _MESSAGE},
    }
)

NEEDED = (_NAME, _BENCH_DTYPE, _DEVICE_DTYPE, _SHAPE, _STATUS)

_OUTPUT = re.compile(r"(?P<case>.+)\.(?P<direction>forward|backward)\.output\.(?P<path>.+)")


@dataclass(frozen=True)
class DetailsRow:
    """The row of one output or gradient.

    Attributes:
        name: ``Functional.silu.0.forward.output.0``.
        bench_dtype: The plain name of the reference's dtype, ``<class 'int'>`` of a plain value, "" of nothing.
        device_dtype: The same of the value that is judged.
        shape: Of the value that is judged; ``None`` of a plain value.
        metrics: By their names in `METRICS`; what was not computed is not there.
        status: `PASS`, `WARNING`, `ERROR` or `SKIP`.
        texts: The metrics as they stood in a file that was read.
    """

    name: str
    status: str
    message: str = ""
    bench_dtype: str = ""
    device_dtype: str = ""
    shape: tuple[int, ...] | None = None
    metrics: Mapping[str, Number] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def case(self) -> str:
        """``Functional.silu.0``."""
        return case_and_direction(self.name)[0]


def case_and_direction(name: str) -> tuple[str, str]:
    """``("Functional.silu.0", "forward")`` of the name of a row; no direction where it has none."""
    found = _OUTPUT.fullmatch(name)
    return (found["case"], found["direction"]) if found else (name, "")


def is_exact(dtype: str) -> bool:
    """True if values of a dtype are compared for equality: integers, bools, and Python's own."""
    return dtype.startswith(("int", "uint", "bool", "<"))


def by_name(rows: Sequence[DetailsRow], side: str) -> dict[str, DetailsRow]:
    """The rows of one side by their names.

    Args:
        rows: Those of one file.
        side: ``NPU`` or ``GPU``, for the message.

    Raises:
        MsprobeException: two rows have one name.
    """
    twice = [name for name, times in Counter(row.name for row in rows).items() if times > 1]
    if twice:
        raise MsprobeException(f"{twice[0]} occurs twice in the file of the {side}; allowed: each name once.")
    return {row.name: row for row in rows}


def details_line(row: DetailsRow, layout: TableLayout) -> bytes:
    """A row of the table of 23 columns."""
    cells: list[Cell] = [
        row.name,
        _dtype_text(row.bench_dtype, layout),
        _dtype_text(row.device_dtype, layout),
        None if row.shape is None else str(tuple(row.shape)),
        *(row.metrics.get(metric) for metric in METRICS),
        row.status,
        row.message,
    ]
    return layout.line(cells)


def mindspore_line(row: DetailsRow, layout: TableLayout) -> bytes:
    """A row of the table that msProbe writes for MindSpore, which has nine columns and every digit of a float."""
    return layout.line(
        [
            row.name,
            _mindspore_dtype(row.bench_dtype),
            _mindspore_dtype(row.device_dtype),
            None if row.shape is None else str(tuple(row.shape)),
            *(_every_digit(row.metrics.get(metric)) for metric in ("cosine", "max_abs", "max_rel")),
            row.status,
            row.message,
        ]
    )


def read_details(path: str) -> list[DetailsRow]:
    """The rows of a table of details: msProbe's, MindSpore's, or ours.

    Raises:
        FileCheckException: the file cannot be read.
        MsprobeException: it is another table, or a row is damaged.
    """
    return [row_of(record) for record in read(path, (*HEADINGS, *MINDSPORE_HEADINGS), NEEDED)]


def row_of(record: TableRow) -> DetailsRow:
    """A row from the cells of a file.

    Raises:
        MsprobeException: a cell holds what its column does not allow.
    """
    cells = record.cells
    if not cells[_NAME]:
        raise MsprobeException(f"{record.location}: {_NAME} is empty; every row has one.")
    if cells[_STATUS] not in (PASS, WARNING, ERROR, SKIP):
        allowed = ", ".join((PASS, WARNING, ERROR, SKIP))
        raise MsprobeException(f"{record.location}: {_STATUS} is {cells[_STATUS]!r}; allowed: {allowed}.")
    numbers = {metric: record.number(metric) for metric in METRICS}
    return DetailsRow(
        name=cells[_NAME],
        status=cells[_STATUS],
        message=cells.get(_MESSAGE, ""),
        bench_dtype=plain_name(cells[_BENCH_DTYPE]),
        device_dtype=plain_name(cells[_DEVICE_DTYPE]),
        shape=_shape(record),
        metrics={metric: number for metric, number in numbers.items() if number is not None},
        texts={metric: cells[metric] for metric in METRICS if cells.get(metric)},
    )


def _shape(record: TableRow) -> tuple[int, ...] | None:
    text = record.cells[_SHAPE]
    if not text:
        return None
    sizes = [size.strip() for size in text.strip("()[]").split(",") if size.strip()]
    if not all(size.isdecimal() for size in sizes):
        raise MsprobeException(f"{record.location}: {_SHAPE} is {text!r}; allowed: (2, 3), or nothing.")
    return tuple(int(size) for size in sizes)


def _dtype_text(dtype: str, layout: TableLayout) -> Cell:
    if not dtype:
        return None
    return f"torch.{dtype}" if layout.is_msprobe and not dtype.startswith("<") else dtype


def _mindspore_dtype(dtype: str) -> Cell:
    if not dtype or dtype.startswith("<"):
        return dtype or None
    form = format_of(dtype)
    return (form.mindspore if form is not None else "") or dtype.capitalize()


def _every_digit(number: Number | None) -> Cell:
    return None if number is None else repr(float(number))


# --- results


_CASE, _FORWARD, _BACKWARD, _CASE_MESSAGE = "API Name", "Forward Test Success", "Backward Test Success", "Message"
# The two commands of msProbe, and its two frameworks, write the first heading in two ways; both are read.
RESULT_HEADINGS = (
    Heading(_CASE, "API name"), Heading(_FORWARD, _FORWARD), Heading(_BACKWARD, _BACKWARD),
    Heading(_CASE_MESSAGE, _CASE_MESSAGE),
)  # fmt: skip
SECOND_STAGE_HEADINGS = (Heading(_CASE, _CASE), *RESULT_HEADINGS[1:])


@dataclass(frozen=True)
class ResultRow:
    """The row of one case.

    Attributes:
        name: ``Functional.silu.0``.
        forward: `PASS`, `WARNING`, `ERROR` or `SKIP` of `probe.msprobe_rules.precheck.details`.
        backward: The same, or ``None`` where the case has no backward.
    """

    name: str
    forward: str | None
    backward: str | None = None
    message: str = ""


def result_line(row: ResultRow, layout: TableLayout, four_cells: bool = False) -> bytes:
    """A row of the table; msProbe leaves the message of what was run out, unless `four_cells`."""
    cells: list[Cell] = [row.name, row.forward, row.backward, row.message]
    skipped = SKIP in (row.forward, row.backward)
    if layout.is_msprobe and not four_cells and not skipped:
        cells.pop()
    return layout.line(cells)
