"""Our own table: what is said of each output and each gradient, one row each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probe.calls.judged_results import JudgedResult
from probe.common.report.csv_lines import Cell, csv_line
from probe.precheck.result import CaseResult

_HEADINGS = (
    "Name", "Gradient of", "Dtype", "Reference dtype", "Shape", "Verdict", "Error / tolerance", "Tolerance", "Bound",
    "Worst element", "Result", "Reference", "Max ULP", "Mean ULP", "Share over tolerance", "Fits", "Interpretation",
    "Inputs", "Autocast", "Stands for",
)  # fmt: skip


def table_lines(results: Iterable[CaseResult]) -> Iterator[bytes]:
    """The table as lines of CSV, in the order of the cases; one that was not run is a row with the reason."""
    yield csv_line(_HEADINGS)
    for result in results:
        yield from (csv_line(cells) for cells in _rows(result))


def _rows(result: CaseResult) -> Iterator[list[Cell]]:
    behind: list[Cell] = [result.inputs, result.autocast, result.stands_for]
    if result.not_run:
        yield _reason(f"{result.name}.forward", result.not_run, behind)
        return
    for row in result.rows:
        yield [*_cells(row), *behind]
    if result.backward_not_run:
        yield _reason(f"{result.name}.backward", result.backward_not_run, behind)


def _reason(name: str, reason: str, behind: list[Cell]) -> list[Cell]:
    cells: list[Cell] = [name, *[None] * (len(_HEADINGS) - 1 - len(behind)), *behind]
    cells[_HEADINGS.index("Verdict")] = "not run"
    cells[_HEADINGS.index("Interpretation")] = reason
    return cells


def _cells(row: JudgedResult) -> list[Cell]:
    found = row.verdict
    index = None if found.worst_index is None else str(list(found.worst_index))
    worst = (_number(found.worst_result), _number(found.worst_reference))
    return [
        row.name, row.of or None, row.dtype, row.reference_dtype, str(list(row.shape)), found.status, found.ratio,
        found.tolerance, found.bound, index, *worst, found.max_ulp, found.mean_ulp, found.share_over, found.fits,
        found.interpretation,
    ]  # fmt: skip


def _number(value: complex | None) -> Cell:
    return str(value) if isinstance(value, (bool, complex)) else value
