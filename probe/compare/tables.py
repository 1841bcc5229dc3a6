"""The three tables: their columns, and the text of every cell.

What a cell shows is fixed by what existing scripts read: ``N/A`` for what is missing, ``None`` for a statistic that
was not taken, ``Nan``, and infinities with a blank in front, so that spreadsheets show them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import chain, islice
from operator import is_
from typing import Any

from probe.common import files
from probe.common.align.calls import ERROR, WARNING, Row
from probe.common.dump.reading.items import shape_text
from probe.common.dump.reading.records import Item
from probe.common.dump.reading.sources import Stacks
from probe.common.numerics.error_bounds import ALTOGETHER
from probe.common.report import xlsx
from probe.common.report.csv_lines import Cells, csv_text, harmless
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
RESULT = "Result"
TAIL = ("Requires_grad Consistent", RESULT, "Err_message")
STACK = "NPU_Stack_Info"
FILES = "Data_name"
DISTANCE, EXPLAINED = "distance", "explained"
"""Our own columns, behind those that existing scripts read; beside metrics of values the distance says nothing new."""
RESERVED = frozenset((*HEAD, *DIFFERENCES, *STATISTICS, *VALUES, *CHECKSUMS, *TAIL, STACK, FILES, DISTANCE, EXPLAINED))
"""Every column of the three tables, whose names a metric of the user's own cannot take."""

_MIDDLE = {Mode.STATISTICS: DIFFERENCES + STATISTICS, Mode.TENSOR: VALUES + STATISTICS, Mode.CHECKSUM: CHECKSUMS}
_MISSING = Item("N/A", "", "N/A", None, "N/A", "N/A", "N/A", "N/A")
"""Shown in the place of an item that one side does not have."""


def columns(result: ComparisonResult) -> list[str]:
    """The names of the columns."""
    names = [*HEAD, *_MIDDLE[result.mode], *TAIL]
    if result.algorithms:
        names[len(HEAD) + len(VALUES) : len(HEAD) + len(VALUES)] = result.algorithms
    if result.stacks is not None:
        names.append(STACK)
    if result.mode is Mode.TENSOR:
        names.append(FILES)
    return [*names, *_own_columns(result)]


def _own_columns(result: ComparisonResult) -> tuple[str, ...]:
    if not result.shows_distances:
        return ()
    return (EXPLAINED,) if result.mode is Mode.TENSOR else (DISTANCE, EXPLAINED)


BLOCK = 4096
"""The best number of rows for `block`: work done once for all of them does not count then."""


def rows(result: ComparisonResult) -> Iterator[tuple[Any, ...]]:
    """The cells of every row: texts, numbers where there are some, and booleans; ``str`` of one is what a CSV holds."""
    for start in range(0, len(result.rows), BLOCK):
        parts = block(result, start, start + BLOCK)
        for row in zip(*([cells.show(row) * cells.times for row in cells.of_rows] for cells in parts)):
            yield tuple(chain.from_iterable(row))


def block(result: ComparisonResult, start: int, stop: int) -> list[Cells]:
    """The cells of the rows from `start` to `stop`, in this order from left to right."""
    chosen = result.rows[start:stop]
    targets = [row.target or _MISSING for row in chosen]
    goldens = [row.golden or _MISSING for row in chosen]
    pairs = list(zip(targets, goldens))
    # If both dumps have the same values, the cells of an item are made once.
    sides = [targets] if all(map(is_, targets, goldens)) else [targets, goldens]
    names = [_harmless([item.name for item in side]) for side in sides]
    forms = [
        (target.dtype, golden.dtype, target.shape, golden.shape, target.requires_grad, golden.requires_grad)
        for target, golden in pairs
    ]
    times = 3 - len(sides)
    found = [Cells(list(zip(*names)), distinct=True, times=times), Cells(forms, _form_cells)]
    if result.mode is Mode.STATISTICS:
        found.append(Cells([row.metrics[:4] for row in chosen], numbers=True))
        found.append(Cells([row.metrics[4:] for row in chosen], _percents, numbers=True, unit="%"))
    elif result.mode is Mode.TENSOR:
        found.append(Cells([row.metrics for row in chosen], numbers=True))
    else:
        checksums = [_harmless([row.metrics[side] for row in chosen]) for side in (0, 1)]
        found.append(Cells(list(zip(*checksums)), distinct=True))
    if result.mode is not Mode.CHECKSUM:
        if times > 1:
            statistics: list[tuple[Any, ...]] = [(item.max, item.min, item.mean, item.norm) for item in targets]
        else:
            statistics = [
                (
                    target.max, target.min, target.mean, target.norm,
                    golden.max, golden.min, golden.mean, golden.norm,
                )
                for target, golden in pairs
            ]  # fmt: skip
        found.append(Cells(statistics, _statistic_cells, numbers=True, times=times))
    found.append(Cells([(row.requires_grad_consistent, row.result, row.messages) for row in chosen], _result_cells))
    if result.stacks is not None:
        previous = result.rows[start - 1].record if start else None
        found.append(Cells(_stack_cells(result.stacks, chosen, previous)))
    if result.mode is Mode.TENSOR:
        names_of_files = [(str([target.data_name or "-1", golden.data_name or "-1"]),) for target, golden in pairs]
        found.append(Cells(names_of_files, distinct=True))
    own = _own_columns(result)
    if own:
        distances = [(row.relative_difference, row.explained)[-len(own) :] for row in chosen]
        found.append(Cells(distances, _distance_cells))
    return found


def _distance_cells(cells: tuple[Any, ...]) -> tuple[Any, ...]:
    """Distances with the digits that they have; ``all`` of what has no rounding, and nothing where none is known."""
    return tuple(
        "" if cell is None else float(f"{cell:.3g}") if cell < ALTOGETHER else "all" if cell < math.inf else " inf"
        for cell in cells
    )


def _form_cells(cells: tuple[Any, ...]) -> tuple[Any, ...]:
    """Types, shapes, and whether gradients are required."""
    n_type, b_type, n_shape, b_shape, *flags = cells
    types = (harmless(n_type or "N/A"), harmless(b_type or "N/A"))
    shapes = ("N/A" if shape is None else shape_text(shape) for shape in (n_shape, b_shape))
    return (*types, *shapes, *("N/A" if flag is None else flag for flag in flags))


def _percents(cells: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(f"{cell}%" if type(cell) is float else cell for cell in cells)


def _statistic_cells(cells: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(statistic, cells))


def _result_cells(cells: tuple[Any, ...]) -> tuple[Any, ...]:
    consistent, result, messages = cells
    return consistent, result, json.dumps(messages)


def _stack_cells(stacks: Stacks, chosen: list[Row], previous: str | None) -> list[tuple[str]]:
    """The stack of each record on its first row; `previous` is the record of the row before."""
    # The calls from one place share a list.
    texts: dict[int, tuple[str]] = {}
    missing = ("N/A",)
    found = []
    for row in chosen:
        cell = missing
        if row.record != previous and row.target is not None:
            frames = stacks.get(row.record)
            if frames:
                cell = texts.get(id(frames)) or texts.setdefault(id(frames), (str(frames),))
        found.append(cell)
        previous = row.record
    return found


def _harmless(texts: list[str]) -> list[str]:
    """`harmless` of each; whether there is anything to do is seen at all of them together."""
    if ";" not in "".join(texts) and all(map(str.isalpha, {text[:1] for text in texts})):
        return texts
    return list(map(harmless, texts))


def statistic(value: Any) -> Any:
    """The cell of a statistic."""
    if type(value) is float:
        if math.isfinite(value):
            return value
        return "Nan" if math.isnan(value) else " inf" if value > 0 else " -inf"
    if value is None:
        return "None"
    return harmless(value) if type(value) is str else value


# --- table files


CSV_ROWS = 1_000_000
"""Rows of one CSV file: spreadsheets open 1 048 576 at most."""
SHEET_ROWS = 1_048_500
"""Rows of one sheet: Excel takes 1 048 576 at most."""


def write_csv(result: ComparisonResult, stem: str) -> list[str]:
    """Write ``<stem>.csv``, or ``<stem>_part_1.csv`` and so on; returns the paths. An existing file is replaced."""
    parted = len(result.rows) > CSV_ROWS
    written = []
    for part in range(max(1, -(-len(result.rows) // CSV_ROWS))):
        path = f"{stem}_part_{part + 1}.csv" if parted else f"{stem}.csv"
        stop = min(len(result.rows), (part + 1) * CSV_ROWS)
        with files.replacing(path) as stream:
            stream.write(csv_text([Cells([tuple(columns(result))])]))
            for start in range(part * CSV_ROWS, stop, BLOCK):
                stream.write(csv_text(block(result, start, min(stop, start + BLOCK))))
        written.append(path)
    return written


def write_xlsx(result: ComparisonResult, stem: str) -> list[str]:
    """Write ``<stem>.xlsx``, further sheets from 1 048 500 rows on; returns its path.

    Raises:
        MissingDependency: openpyxl is not installed.
    """
    path = f"{stem}.xlsx"
    xlsx.write_xlsx(path, _sheets(result))
    return [path]


def _sheets(result: ComparisonResult) -> Iterator[xlsx.Sheet]:
    """A table without rows has one sheet too."""
    lines = rows(result)
    for part in range(max(1, -(-len(result.rows) // SHEET_ROWS))):
        title = f"part_{part}" if len(result.rows) > SHEET_ROWS else "Sheet1"
        of_part = chain([columns(result)], islice(lines, SHEET_ROWS))
        yield xlsx.Sheet(title, of_part, RESULT, (STACK,), (ERROR,), (WARNING,))


def write(result: ComparisonResult, stem: str, as_xlsx: bool) -> list[str]:
    """Write the table; returns the files.

    Args:
        result: The comparison.
        stem: The path without its suffix.
        as_xlsx: Write a workbook, in which errors and warnings have a colour, and not CSV.
    """
    return write_xlsx(result, stem) if as_xlsx else write_csv(result, stem)
