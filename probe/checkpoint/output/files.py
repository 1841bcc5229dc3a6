"""The answer as files: JSON, a workbook, a page."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from probe.checkpoint.output.as_json import as_json
from probe.checkpoint.output.page import page
from probe.checkpoint.report import FINE, Parameter, Report
from probe.common import files
from probe.common.errors import FileCheckException
from probe.common.report.json_values import to_json
from probe.common.report.xlsx import Sheet, write_xlsx

FORMATS = ("json", "xlsx", "html")
COLUMNS = (
    "name", "other_name", "verdict", "how", "max_abs", "max_rel", "ulp_max", "ulp_mean", "l2", "relative_l2", "cos",
    "shape", "other_shape", "dtype", "other_dtype",
)  # fmt: skip
_NUMBERS = COLUMNS[4:11]
_STEM = "ckpt_compare"


def check(folder: str, formats: Sequence[str], overwrite: bool, names: Sequence[str] = ()) -> None:
    """Make the folder, and refuse to replace files; before the work, which would be lost.

    Raises:
        FileCheckException: a file is there and may not be replaced.
    """
    files.make_folder(folder)
    for name in [*(f"{_STEM}.{each}" for each in formats if each in FORMATS), *names]:
        path = os.path.join(folder, name)
        if os.path.lexists(path) and not overwrite:
            raise FileCheckException(f"{path} exists; give --overwrite to replace it, or another folder with -o.")


def write(report: Report, folder: str, formats: Sequence[str]) -> list[str]:
    """Write files; returns their paths."""
    makers: dict[str, Callable[[Report, str], None]] = {"json": _write_json, "xlsx": _write_xlsx, "html": _write_page}
    written = []
    for name in formats:
        if name in makers:
            path = os.path.join(folder, f"{_STEM}.{name}")
            makers[name](report, path)
            written.append(path)
    return written


def _write_json(report: Report, path: str) -> None:
    with files.replacing(path) as stream:
        stream.write(json.dumps(to_json(as_json(report)), indent=1, allow_nan=False).encode())


def _write_page(report: Report, path: str) -> None:
    with files.replacing(path) as stream:
        stream.write(page(report).encode("utf-8", "replace"))


def _write_xlsx(report: Report, path: str) -> None:
    red, yellow = ("different", "missing", "shape"), ("close",)
    sheets = [
        Sheet(
            "summary", [("answer", report.answer), ("why", report.why), *(("layers", each) for each in report.layers)]
        ),
        Sheet("parameters", _rows(report.parameters), "verdict", red=red, yellow=yellow),
    ]
    if report.optimizer:
        sheets.append(Sheet("optimizer", _rows(report.optimizer), "verdict", red=red, yellow=yellow))
    if report.settings:
        settings = [(each.name, _cell(each.value), _cell(each.other_value)) for each in report.settings]
        sheets.append(Sheet("settings", [("name", "value", "other_value"), *settings]))
    write_xlsx(path, sheets)


def _rows(parameters: Sequence[Parameter]) -> Iterator[Sequence[Any]]:
    yield COLUMNS
    yield from map(cells, parameters)


def cells(of: Parameter) -> tuple[Any, ...]:
    """The cells of a parameter, one for each of `COLUMNS`."""
    shapes = ("" if shape is None else str(list(shape)) for shape in (of.shape, of.other_shape))
    return (
        of.name, of.other_name, of.verdict if not of.harmless or of.verdict in FINE else "", of.how,
        *(of.numbers.get(name) for name in _NUMBERS), *shapes, of.dtype, of.other_dtype,
    )  # fmt: skip


def _cell(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)
