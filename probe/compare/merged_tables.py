"""One metric of communication calls over all ranks: a workbook with a sheet per metric and a column per rank.

Reads the tables that `compare` wrote for the ranks of a step, CSV or workbooks; one in several parts is one table.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from probe.common import files, log
from probe.common.data_files import load_yaml
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.harmless_text import show
from probe.common.report.xlsx import Sheet, load_openpyxl, write_xlsx
from probe.compare import tables

_TABLE = re.compile(r"compare_result_rank(\d+)_(\d{14})(?:_part_([1-9]\d*))?\.(csv|xlsx)\Z")
_NO_NUMBER = ("N/A", "unsupported", "Nan")
_MODES = {tables.DIFFERENCES[0]: tables.DIFFERENCES, tables.VALUES[0]: tables.VALUES}
_LONGEST_SHEET_NAME = 31
"""Characters of the name of a sheet, by Excel's limit."""
_NOT_IN_SHEET_NAMES = re.compile(r"[\[\]:*?/\\]")


@dataclass(frozen=True)
class Choice:
    """The choice of what is collected.

    Args:
        apis: beginnings of record names, at the borders of their parts.
        metrics: columns; ``None`` for all of the mode.
    """

    apis: tuple[str, ...]
    metrics: tuple[str, ...] | None = None


def load_choice(path: str) -> Choice:
    """Read the file of ``-config``.

    Raises:
        MsprobeException: it cannot be read, or ``api`` is missing.
    """
    content = load_yaml(path)
    apis = content.get("api") if isinstance(content, dict) else None
    if not _names(apis) or not apis:
        wanted = "a list of names such as Distributed.all_reduce"
        raise MsprobeException(f'{path}: "api" is {show(apis)}; expected {wanted}.')
    metrics = content.get("compare_index")
    if metrics is not None and not _names(metrics):
        raise MsprobeException(f'{path}: "compare_index" is {show(metrics)}; expected a list of columns.')
    return Choice(tuple(apis), tuple(metrics) if metrics else None)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def merge(folder: str, output: str, choice: Choice) -> str:
    """Collect the tables in `folder`; returns the workbook written to `output`.

    Raises:
        MsprobeException: there are fewer than two tables, or one cannot be merged.
        MissingDependency: openpyxl is not installed.
    """
    ranks = _find(folder)
    cells: dict[int, dict[str, dict[str, str]]] = {}
    metrics: tuple[str, ...] = ()
    for rank, parts in ranks.items():
        cells[rank] = {}
        for path in parts:
            columns, rows = _read(path, choice.apis)
            metrics = _checked_metrics(path, columns, choice)
            cells[rank].update((row["NPU Name"], row) for row in rows)
    if not any(cells.values()):
        raise MsprobeException(f"{folder}: no table has a row of {', '.join(choice.apis)}.")
    files.make_folder(output)
    path = os.path.join(output, f"multi_ranks_compare_merge_{time.strftime('%Y%m%d%H%M%S')}.xlsx")
    _write(path, metrics, cells)
    return path


def _checked_metrics(path: str, columns: list[str], choice: Choice) -> tuple[str, ...]:
    if tables.HEAD[0] not in columns:
        raise MsprobeException(f"{path}: not a table of `msprobe compare`.")
    kinds = (names for first, names in _MODES.items() if {first, tables.STATISTICS[0]} <= set(columns))
    found = next((_metrics(columns, names) for names in kinds), None)
    if found is None:
        raise MsprobeException(f"{path}: a table of checksums has no metrics to merge.")
    metrics = choice.metrics or (*found, "Requires_grad Consistent")
    unknown = [name for name in metrics if name not in columns]
    if unknown:
        raise MsprobeException(f'{path}: "compare_index" names {unknown[0]!r}, which is not a column of this table.')
    return metrics


def _metrics(columns: list[str], built_in: tuple[str, ...]) -> list[str]:
    """The metrics of a table, the user's own included, which are between the built-in ones and the statistics."""
    return columns[columns.index(built_in[0]) : columns.index(tables.STATISTICS[0])]


def _find(folder: str) -> dict[int, list[str]]:
    """The newest table of each rank, part by part."""
    if not os.path.isdir(folder):
        raise FileCheckException(f"{folder} is not a folder.")
    found: dict[int, dict[tuple[str, str], dict[int, str]]] = {}
    for name in sorted(os.listdir(folder)):
        match = _TABLE.match(name)
        if match:
            rank, written, part, suffix = match.groups()
            parts = found.setdefault(int(rank), {}).setdefault((written, suffix), {})
            parts[int(part or 0)] = os.path.join(folder, name)
        elif name.startswith("compare_result_rank_"):
            log.warning(f"{name} is left out: its rank is not known.")
        elif name.endswith(".xlsx"):
            raise MsprobeException(f"{os.path.join(folder, name)}: not a table of one rank; move it elsewhere.")
    if len(found) < 2:
        raise MsprobeException(f"{folder} holds tables of {len(found)} ranks; at least two are needed.")
    return {rank: _whole(of_rank[max(of_rank)]) for rank, of_rank in sorted(found.items())}


def _whole(parts: dict[int, str]) -> list[str]:
    """The files of one table in order; a table in parts has two of them at least."""
    if 0 in parts:
        return [parts[0]]
    missing = next((part for part in range(1, max(*parts, 2) + 1) if part not in parts), None)
    if missing is not None:
        some = next(iter(parts.values()))
        raise MsprobeException(f"{some} is one part of a table, and part {missing} is missing; copy it there.")
    return [parts[part] for part in sorted(parts)]


def _read(path: str, apis: tuple[str, ...]) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a table, and its rows of `apis`; a part has a million of others, which are not kept."""
    if path.endswith(".csv"):
        csv.field_size_limit(sys.maxsize)  # stacks are longer than the 128 KiB allowed by default
        try:
            with open(path, encoding="utf-8", newline="") as stream:
                reader = csv.DictReader(stream)
                chosen = [row for row in reader if _chosen(row, apis)]
                return list(reader.fieldnames or ()), chosen
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise FileCheckException(f"{path}: cannot be read: {error}.") from None
    columns: list[str] = []
    rows: list[dict[str, str]] = []
    for cells in _sheet_rows(path):
        if not columns or cells == columns:
            columns = cells  # Every sheet begins with them.
            continue
        row = dict(zip(columns, cells))
        if _chosen(row, apis):
            rows.append(row)
    return columns, rows


def _sheet_rows(path: str) -> Iterator[list[str]]:
    openpyxl = load_openpyxl()
    try:
        book = openpyxl.load_workbook(path, read_only=True)
        try:
            for sheet in book.worksheets:
                for row in sheet.iter_rows(values_only=True):
                    yield [str(cell) for cell in row]
        finally:
            book.close()
    except MemoryError:
        raise
    except Exception as error:
        # A damaged workbook gives errors of zipfile, of the XML parser and of openpyxl.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise FileCheckException(f"{path}: cannot be read as a workbook: {reason}.") from None


def _chosen(row: dict[str, str], apis: tuple[str, ...]) -> bool:
    # A file that is no table has no such column.
    name = row.get(tables.HEAD[0]) or ""
    return any(name == api or name.startswith(f"{api}.") for api in apis)


def _write(path: str, metrics: tuple[str, ...], cells: dict[int, dict[str, dict[str, str]]]) -> None:
    names = dict.fromkeys(name for rows in cells.values() for name in rows)
    head = ["NPU Name", *(f"rank{rank}" for rank in cells)]
    write_xlsx(
        path,
        (
            Sheet(
                _NOT_IN_SHEET_NAMES.sub("_", metric)[:_LONGEST_SHEET_NAME],
                [head, *([name, *(_cell(rows.get(name), metric) for rows in cells.values())] for name in names)],
            )
            for metric in metrics
        ),
    )


def _cell(row: dict[str, str] | None, metric: str) -> Any:
    if row is None:
        return None
    text = row[metric]
    if text in _NO_NUMBER:
        return f"NPU:{row['NPU max']}  Bench:{row['Bench max']}"
    try:
        return float(text)
    except ValueError:
        return text
