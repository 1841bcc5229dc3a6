"""The three tables: their columns, and the text of every cell.

What a cell shows is fixed by what existing scripts read: ``N/A`` for what is missing, ``None`` for a statistic that
was not taken, ``Nan``, and infinities with a blank in front, so that spreadsheets show them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from probe.compare.records import Item
from probe.compare.result import ComparisonResult, Mode

HEAD = (
    "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
    "NPU Requires_grad", "Bench Requires_grad",
)  # fmt: skip
DIFFERENCES = (
    "Max diff", "Min diff", "Mean diff", "L2norm diff",
    "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr",
)  # fmt: skip
STATISTICS = (
    "NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm",
)  # fmt: skip
VALUES = (
    "Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio",
)  # fmt: skip
CHECKSUMS = ("NPU MD5", "BENCH MD5")
TAIL = ("Requires_grad Consistent", "Result", "Err_message")
STACK = "NPU_Stack_Info"
FILES = "Data_name"

_MIDDLE = {Mode.STATISTICS: DIFFERENCES + STATISTICS, Mode.TENSOR: VALUES + STATISTICS, Mode.CHECKSUM: CHECKSUMS}
_MISSING = ("N/A",) * 4
_NOTHING = Item("N/A", "")

# What a spreadsheet would take for a formula, also in full-width letters and after a separator.
_FORMULA = re.compile(r"^\s*[+\-=%@＋－＝％＠]|;\s*[+\-=%@＋－＝％＠]")  # noqa: RUF001
_NUMBER = re.compile(r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?%?\s*$|^\s*-?(inf|nan)\s*$", re.IGNORECASE)


def columns(result: ComparisonResult) -> list[str]:
    """The names of the columns."""
    names = [*HEAD, *_MIDDLE[result.mode], *TAIL]
    if result.stacks is not None:
        names.append(STACK)
    if result.mode is Mode.TENSOR:
        names.append(FILES)
    return names


def rows(result: ComparisonResult) -> Iterator[list[Any]]:
    """The cells of every row: texts, numbers where there are some, and booleans; ``str`` of one is what a CSV holds."""
    statistics, tensor = result.mode is Mode.STATISTICS, result.mode is Mode.TENSOR
    stacks = result.stacks
    previous = None
    for row in result.rows:
        n, b = row.target or _NOTHING, row.golden or _NOTHING
        cells: list[Any] = [
            harmless(n.name), harmless(b.name), harmless(n.dtype or "N/A"), harmless(b.dtype or "N/A"),
            n.shape or "N/A", b.shape or "N/A",
            "N/A" if n.requires_grad is None else n.requires_grad,
            "N/A" if b.requires_grad is None else b.requires_grad,
        ]  # fmt: skip
        if statistics:
            cells += row.metrics[:4]
            cells += map(_percent, row.metrics[4:])
        else:
            cells += row.metrics if tensor else map(harmless, row.metrics)
        if statistics or tensor:
            cells += _MISSING if row.target is None else map(statistic, (n.max, n.min, n.mean, n.norm))
            cells += _MISSING if row.golden is None else map(statistic, (b.max, b.min, b.mean, b.norm))
        cells += (row.requires_grad_consistent, row.verdict, json.dumps(row.messages) if row.messages else "[]")
        if stacks is not None:
            frames = stacks.get(row.record) if row.record != previous and row.target is not None else None
            cells.append(str(frames) if frames else "N/A")
            previous = row.record
        if tensor:
            cells.append(str([n.data_name or "-1", b.data_name or "-1"]))
        yield cells


def _percent(value: Any) -> Any:
    return f"{value}%" if type(value) is float else value


def statistic(value: Any) -> Any:
    """The cell of a statistic."""
    if type(value) is float:
        if math.isfinite(value):
            return value
        return "Nan" if math.isnan(value) else " inf" if value > 0 else " -inf"
    if value is None:
        return "None"
    return harmless(value) if type(value) is str else value


def harmless(cell: str) -> str:
    """`cell` with an apostrophe in front where a spreadsheet would compute it. Numbers stay as they are."""
    if cell[:1].isalpha() and ";" not in cell:
        return cell
    return f"'{cell}" if _FORMULA.search(cell) and not _NUMBER.match(cell) else cell
