"""The files of a comparison: config_check.json, config_check.html, result.xlsx."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from probe.common import files, harmless_text
from probe.common.environment.differences import in_words
from probe.common.errors import FileCheckException
from probe.common.report.json_values import to_json
from probe.common.report.page.filling import table_page
from probe.common.report.xlsx import Sheet, write_xlsx
from probe.configcheck.findings import ERROR, INFO, PASS, WARNING, Check, Comparison, Finding
from probe.configcheck.pack import Pack, is_member, plain_members

_STYLES = {PASS: "green", INFO: "", WARNING: "yellow", ERROR: "bold red"}
_MOST_ROWS = 20
"""Rows that the text has of a check; the files have all."""
_WIDEST = 60
"""Characters of a value in the text before it is cut; a guess."""


def lines(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """The answer first, then each check with its differences; each line with a style of rich."""
    yield headline(comparison), _STYLES[comparison.answer]
    for check in comparison.checks:
        yield _title(check), _STYLES[check.level]
        for row in sorted(check.rows, key=lambda row: (ERROR, WARNING, INFO).index(row.level))[:_MOST_ROWS]:
            yield f"  {row.level}: {row_text(row)}", _STYLES[row.level]
        if len(check.rows) > _MOST_ROWS:
            yield f"  and {len(check.rows) - _MOST_ROWS} more; the files have all", ""
    for name in comparison.not_compared:
        yield f"{name}: not compared, one of the packs lacks it", _STYLES[WARNING]
    if comparison.withheld:
        several = "variables differ" if comparison.withheld > 1 else "variable differs"
        yield f"withheld: {comparison.withheld} further {several}, which may hold secrets", ""


def headline(comparison: Comparison) -> str:
    """The first line: whether the two configurations agree, or which checks do not pass, by the worst of their rows."""
    left_out = f"; not compared: {', '.join(comparison.not_compared)}" if comparison.not_compared else ""
    if comparison.answer == PASS:
        return f"pass: the configurations agree in all that is known to change numbers{left_out}"
    names = [check.name for check in comparison.checks if check.level in (WARNING, ERROR)]
    return f"{comparison.answer}: the configurations differ in {', '.join(names)}{left_out}"


def row_text(row: Finding) -> str:
    """Example: ``lr is 0.1 (golden: 0.2): weights differ after the first update``."""
    # "lr in run.sh, value 2 of 2, is".
    name = f"{row.name}," if ", value " in row.name else row.name
    where = f" in {row.golden_place}" if row.golden_place else ""
    return f"{name} is {_shown(row.target)} (golden: {_shown(row.golden)}{where}): {row.why}"


def _title(check: Check) -> str:
    if not check.rows:
        return f"{check.name}: {PASS}"
    return f"{check.name}: {check.level}, {len(check.rows)} difference{'' if len(check.rows) == 1 else 's'}"


def _shown(value: Any) -> str:
    text = " ".join(in_words(value).split())
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


# --- written


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
        head, cells = _COLUMNS.get(check.name, (["name", "bench_value", "cmp_value", "level"], _name_cells))
        found[check.name] = [[*head, "why"], *([*cells(row), row.level, row.why] for row in check.rows)]
    return found


def _name_cells(row: Finding) -> list[Any]:
    return [row.name, _cell(row.golden), _cell(row.target)]


def _both_name_cells(row: Finding) -> list[Any]:
    golden, target = row.names
    return [golden, target, _cell(row.golden), _cell(row.target)]


def _setting_cells(row: Finding) -> list[Any]:
    golden = "Only in comparison" if row.golden is None else row.names[0]
    target = "Only in benchmark" if row.target is None else row.names[1]
    return [row.file, golden, target, _cell(row.golden), _cell(row.target), row.how]


_COLUMNS: dict[str, tuple[list[str], Any]] = {
    "env": (["bench_env_name", "cmp_env_name", "bench_value", "cmp_value", "level"], _both_name_cells),
    "pip": (["package", "bench version", "cmp version", "level"], _name_cells),
    "hyperparameters": (
        ["file_name", "bench_para", "cmp_para", "bench_value", "cmp_value", "matched_with", "level"], _setting_cells,
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
        yield harmless_text.table(("level", "name", "target", "golden", "why"), rows)
    for name in comparison.not_compared:
        yield harmless_text.paragraph(f"{name}: not compared, one of the packs lacks it")
    if comparison.withheld:
        yield harmless_text.paragraph(f"withheld: {comparison.withheld} differences that may hold secrets")
