"""The answer of a comparison of checkpoints as text, JSON, a workbook and a page."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

from probe.checkpoint.report import (
    CLOSE,
    DIFFERENT,
    FINE,
    IDENTICAL,
    MISSING,
    SHAPE,
    UNKNOWN,
    Parameter,
    Report,
    count_verdicts,
    counted,
)
from probe.common import files
from probe.common.errors import FileCheckException
from probe.common.harmless_text import paragraph, table
from probe.common.report.json_values import to_json
from probe.common.report.page.filling import table_page
from probe.common.report.xlsx import Sheet, load_openpyxl, write_xlsx

_MOST_ROWS = 20
"""Parameters that the text lists; a guess, a screen full."""
_MOST_SETTINGS = 10
"""Settings that the text lists; a guess."""
_STYLES = {DIFFERENT: "red", MISSING: "red", SHAPE: "red"}


def lines(report: Report) -> Iterator[tuple[str, str]]:
    """Lines, each with a style of rich."""
    yield f"{report.answer}: {report.why}", "bold red" if report.found else "bold green"
    yield f"first:  {report.path} ({report.format}, {_count(report, True)})", ""
    yield f"second: {report.other_path} ({report.other_format}, {_count(report, False)})", ""
    for sentence in report.layers:
        yield sentence, ""
    bad = [each for each in [*report.parameters, *report.optimizer] if not each.is_fine]
    for each in bad[:_MOST_ROWS]:
        yield f"  {parameter(each)}", _STYLES.get(each.verdict, "yellow")
    if len(bad) > _MOST_ROWS:
        yield f"  ... and {len(bad) - _MOST_ROWS} more; --json and -o DIR list them", ""
    for replica in report.replicas[:_MOST_ROWS]:
        yield (
            f"  {replica.name}: copies on {replica.ranks} of {replica.path} differ, max_abs {replica.max_abs:.3g}",
            "red",
        )
    for sentence in remarks(report):
        yield f"  {sentence}", ""
    if report.settings:
        many = len(report.settings) > 1
        verb, they = ("differ", "they do") if many else ("differs", "it does")
        yield f"{counted(len(report.settings), 'setting')} {verb} ({they} not change the answer):", ""
        for setting in report.settings[:_MOST_SETTINGS]:
            yield f"  {setting.name}: {setting.value!r} and {setting.other_value!r}", ""
    for note in report.notes:
        yield f"note: {note}", ""


def _count(report: Report, first: bool) -> str:
    return counted(len({each.name if first else each.other_name for each in report.parameters} - {""}), "parameter")


def parameter(of: Parameter) -> str:
    """A parameter in a line, with numbers that have labels."""
    names = of.shown if not of.name or not of.other_name or of.name == of.other_name else f"{of.name} | {of.other_name}"
    if of.verdict == MISSING:
        side = "second" if of.name else "first"
        return f"{names}: missing in the {side} checkpoint" + (f" ({of.how})" if of.how else "")
    # A fingerprint gives estimates of distances, and not of the largest difference.
    labels = ("max_abs", "max_rel", "ulp_max", "cos") if "max_abs" in of.numbers else ("relative_l2", "cos")
    shown = [f"{label} {of.numbers[label]:.3g}" for label in labels if label in of.numbers]
    how = f" ({of.how})" if of.how else ""
    return f"{names}: {of.verdict}{how}" + (f", {', '.join(shown)}" if shown and of.verdict != IDENTICAL else "")


def remarks(report: Report) -> Iterator[str]:
    """Conversions that make parameters equal that are stored differently; a line for each kind, with an example."""
    kinds: dict[str, list[Parameter]] = {}
    for each in report.parameters:
        if each.how and (each.verdict in FINE or each.harmless):
            kinds.setdefault(_kind(each.how), []).append(each)
    for of_kind in kinds.values():
        first = of_kind[0]
        names = first.shown if not first.name or not first.other_name else f"{first.name} = {first.other_name}"
        many = f"; the same for {counted(len(of_kind) - 1, 'other')}" if len(of_kind) > 1 else ""
        yield f"{names}: {first.how}{many}"


def _kind(how: str) -> str:
    """The words without numbers and names."""
    return "".join("#" if each.isdigit() else each for each in how.split(" and the other side")[0].split(" to ")[0])


# --- page


def page(report: Report) -> str:
    """The page."""
    sides = [("first", report.path, report.format), ("second", report.other_path, report.other_format)]
    parts = [
        paragraph(report.why),
        table(("", "path", "format"), sides),
        "<h2>Layers</h2>", *(paragraph(each) for each in report.layers), *_differences(report),
        "<h2>Remarks</h2>", *(paragraph(each) for each in [*remarks(report), *report.notes]),
    ]  # fmt: skip
    if report.settings:
        rows = [(each.name, each.value, each.other_value) for each in report.settings]
        parts += ["<h2>Settings that differ</h2>", table(("name", "first", "second"), rows)]
    parts += ["<h2>All parameters</h2>", _table(report.parameters)]
    if report.optimizer:
        parts += ["<h2>Optimizer</h2>", _table(report.optimizer)]
    return table_page(f"{report.answer}: checkpoints", report.answer, parts, report.found)


def _differences(report: Report) -> list[str]:
    bad = [each for each in [*report.parameters, *report.optimizer] if not each.is_fine]
    if not bad and not report.replicas:
        return []
    counts = ", ".join(f"{count} {verdict}" for verdict, count in count_verdicts(bad).items() if count)
    replicas = [
        paragraph(f"{each.name}: copies on {each.ranks} differ, max_abs {each.max_abs:.3g}") for each in report.replicas
    ]
    return [f"<h2>Differences: {escape(counts)}</h2>", *(paragraph(parameter(each)) for each in bad[:200]), *replicas]


def _table(parameters: Sequence[Parameter]) -> str:
    numbers = ("max_abs", "ulp_max", "l2", "cos")
    rows = [
        (
            each.name, each.other_name, each.verdict, each.how,
            *(f"{each.numbers[name]:.6g}" if name in each.numbers else "" for name in numbers),
            each.shape and list(each.shape), each.dtype, each.other_dtype,
        )
        for each in parameters
    ]  # fmt: skip
    return table(("first", "second", "verdict", "how", *numbers, "shape", "dtype", "other dtype"), rows)


# --- as json


_NUMBERS = ("max_abs", "max_rel", "ulp_max", "ulp_mean", "l2", "relative_l2", "cos")


def as_json(report: Report) -> dict[str, Any]:
    """The keys of ``ckpt_compare --json``."""
    return {
        "answer": report.answer,
        "why": report.why,
        "checkpoints": [
            {"path": report.path, "format": report.format}, {"path": report.other_path, "format": report.other_format}
        ],
        "layers": report.layers,
        "parameters": [_parameter(each) for each in report.parameters],
        "optimizer": [_parameter(each) for each in report.optimizer],
        "replicas": [
            {"path": each.path, "name": each.name, "ranks": each.ranks, "max_abs": _number(each.max_abs)}
            for each in report.replicas
        ],
        "settings": [
            {"name": each.name, "value": each.value, "other_value": each.other_value} for each in report.settings
        ],
        "notes": report.notes,
    }  # fmt: skip


def _parameter(of: Parameter) -> dict[str, Any]:
    return {
        "name": of.name or None,
        "other_name": of.other_name or None,
        "verdict": of.verdict,
        **{name: _number(of.numbers[name]) if name in of.numbers else None for name in _NUMBERS},
        "shape": None if of.shape is None else list(of.shape),
        "other_shape": None if of.other_shape is None else list(of.other_shape),
        "dtype": of.dtype or None,
        "other_dtype": of.other_dtype or None,
        "how": of.how,
        "counts": not of.is_fine,
    }


def _number(value: float) -> float | None:
    """A number; none where it is not defined, such as the cosine of a vector of zeros."""
    return None if math.isnan(value) else value


# --- files


FORMATS = ("json", "xlsx", "html")
COLUMNS = (
    "name", "other_name", "verdict", "how", "max_abs", "max_rel", "ulp_max", "ulp_mean", "l2", "relative_l2", "cos",
    "shape", "other_shape", "dtype", "other_dtype",
)  # fmt: skip
_NUMBER_COLUMNS = COLUMNS[4:11]
_STEM = "ckpt_compare"


def check(folder: str, formats: Sequence[str], overwrite: bool, names: Sequence[str] = ()) -> None:
    """Make the folder, and refuse to replace files; before the work, which would be lost.

    Raises:
        FileCheckException: a file is there and may not be replaced.
        MissingDependency: ``xlsx`` is among the formats, and openpyxl is not installed.
    """
    if "xlsx" in formats:
        load_openpyxl()
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
    red, yellow = (DIFFERENT, MISSING, SHAPE), (CLOSE, UNKNOWN)
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
        *(of.numbers.get(name) for name in _NUMBER_COLUMNS), *shapes, of.dtype, of.other_dtype,
    )  # fmt: skip


def _cell(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)
