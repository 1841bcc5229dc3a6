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
from probe.configcheck.findings import Comparison, Finding
from probe.configcheck.output.text import headline
from probe.configcheck.pack import Pack, is_member, plain_members

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


def write(comparison: Comparison, folder: str) -> list[str]:
    """Write the answer as JSON and as a page; returns their paths."""
    paths = [os.path.join(folder, name) for name in (JSON_FILE, PAGE)]
    answer = json.dumps(to_json(comparison.as_json()), indent=1, allow_nan=False)
    for path, content in zip(paths, (answer, page(comparison))):
        with files.replacing(path) as stream:
            stream.write(content.encode("utf-8", "replace"))
    return paths


def write_workbook(sheets: Sheets, folder: str) -> str:
    """Write the workbook; returns its path.

    Raises:
        MissingDependency: openpyxl is not installed.
    """
    path = os.path.join(folder, WORKBOOK)
    judged = ("level", "pass_check", "check_result", "equal")
    write_xlsx(path, [Sheet(name, rows, judged_by=next((each for each in judged if each in rows[0]), ""))
                      for name, rows in sheets.items()])  # fmt: skip
    return path


def write_members(packs: Sequence[Pack], folder: str) -> list[str]:
    """Write the content of both packs into ``bench`` and ``cmp``, without what may be secret; returns both folders.

    Members of an earlier comparison are removed.
    """
    found = []
    for name, pack in zip(("bench", "cmp"), packs):
        top = os.path.join(folder, name)
        found.append(top)
        for above, _, names in os.walk(top):
            for each in names:
                path = os.path.join(above, each)
                if is_member(os.path.relpath(path, top).replace(os.sep, "/")):
                    os.unlink(path)
        for member, content in plain_members(pack).items():
            path = os.path.join(top, *member.split("/"))
            files.make_folder(os.path.dirname(path))
            with files.replacing(path) as stream:
                stream.write(content)
    return found


def sheets_of(comparison: Comparison) -> dict[str, list[list[Any]]]:
    """Our findings as sheets with the names and the columns of msProbe, and the reason of each row at the end."""
    found: dict[str, list[list[Any]]] = {"summary": [["filename", "pass_check"]]}
    # Its summary knows pass, warning and error.
    found["summary"] += [[check.name, "pass" if check.level == "info" else check.level] for check in comparison.checks]
    for check in comparison.checks:
        head, cells = _COLUMNS.get(check.name, (["name", "bench_value", "cmp_value", "level"], _of_name))
        found[check.name] = [[*head, "why"], *([*cells(row), row.level, row.why] for row in check.rows)]
    return found


def _of_name(row: Finding) -> list[Any]:
    return [row.name, _cell(row.golden), _cell(row.target)]


def _of_both_names(row: Finding) -> list[Any]:
    golden, target = row.names
    return [golden, target, _cell(row.golden), _cell(row.target)]


def _of_setting(row: Finding) -> list[Any]:
    golden = "Only in comparison" if row.golden is None else row.names[0]
    target = "Only in benchmark" if row.target is None else row.names[1]
    return [row.file, golden, target, _cell(row.golden), _cell(row.target), row.how]


_COLUMNS: dict[str, tuple[list[str], Any]] = {
    "env": (["bench_env_name", "cmp_env_name", "bench_value", "cmp_value", "level"], _of_both_names),
    "pip": (["package", "bench version", "cmp version", "level"], _of_name),
    "hyperparameters": (
        ["file_name", "bench_para", "cmp_para", "bench_value", "cmp_value", "matched_with", "level"], _of_setting,
    ),
}  # fmt: skip


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
