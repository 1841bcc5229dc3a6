"""The files of a comparison: config_check.json, config_check.html, result.xlsx."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from probe.common import files, html_table
from probe.common.environment.differences import in_words
from probe.common.errors import FileCheckException
from probe.common.report.json_values import to_json
from probe.common.report.page.tables import table_page
from probe.common.report.xlsx import Sheet, write_xlsx
from probe.configcheck.findings import Comparison
from probe.configcheck.output.text import headline

JSON_FILE, PAGE, WORKBOOK = "config_check.json", "config_check.html", "result.xlsx"
DEFAULT_FOLDER = "./config_check_result"

Sheets = Mapping[str, Sequence[Sequence[Any]]]
"""The header and the rows of each sheet, by its name."""


def make_output_folder(folder: str, overwrite: bool) -> None:
    """Make the folder for the files, before the work.

    Raises:
        FileCheckException: it exists with files in it, and may not be overwritten.
    """
    if os.path.isdir(folder) and os.listdir(folder) and not overwrite:
        raise FileCheckException(
            f"{folder} is not empty; give another folder with -o, or --overwrite to write into it."
        )
    files.make_folder(folder)


def write(comparison: Comparison, folder: str, sheets: Sheets | None = None) -> list[str]:
    """Write the files; returns their paths.

    Args:
        comparison: The answer.
        folder: It exists.
        sheets: For the workbook; ``None`` writes none.
    """
    paths = [os.path.join(folder, name) for name in (JSON_FILE, PAGE)]
    answer = json.dumps(to_json(comparison.as_json()), indent=1, allow_nan=False)
    for path, content in zip(paths, (answer, page(comparison))):
        with files.replacing(path) as stream:
            stream.write(content.encode("utf-8", "replace"))
    return paths if sheets is None else [*paths, write_workbook(sheets, folder)]


def write_workbook(sheets: Sheets, folder: str) -> str:
    """Write the workbook; returns its path.

    Raises:
        MissingDependency: openpyxl is not installed.
    """
    path = os.path.join(folder, WORKBOOK)
    write_xlsx(path, [Sheet(name, rows, judged_by=rows[0][-1]) for name, rows in sheets.items()])
    return path


def sheets_of(comparison: Comparison) -> dict[str, list[list[Any]]]:
    """Our findings as sheets."""
    found: dict[str, list[list[Any]]] = {"summary": [["filename", "pass_check"]]}
    found["summary"] += [[check.name, check.level] for check in comparison.checks]
    for check in comparison.checks:
        head = ["name", "bench_value", "cmp_value", "why", "level"]
        found[check.name] = [
            head,
            *([row.name, _cell(row.golden), _cell(row.target), row.why, row.level] for row in check.rows),
        ]
    return found


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, (int, float, str)) else json.dumps(value)


def page(comparison: Comparison) -> str:
    """The page: it needs no other file and runs no script."""
    answer = headline(comparison)
    return table_page(answer, answer, _sections(comparison), comparison.answer != "pass")


def _sections(comparison: Comparison) -> Iterator[str]:
    for check in comparison.checks:
        yield f"<h2 class='{check.level}'>{escape(check.name)}: {check.level}</h2>"
        rows = [(row.level, row.name, in_words(row.target), in_words(row.golden), row.why) for row in check.rows]
        yield html_table.table(("level", "name", "target", "golden", "why"), rows)
    for name in comparison.not_compared:
        yield html_table.paragraph(f"{name}: not compared, one of the packs lacks it")
    if comparison.withheld:
        yield html_table.paragraph(f"withheld: {comparison.withheld} differences that may hold secrets")
