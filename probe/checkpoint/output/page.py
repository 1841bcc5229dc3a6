"""The answer as a page: one file without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from probe.checkpoint.output.text import parameter, remarks
from probe.checkpoint.report import Parameter, Report, count_verdicts
from probe.common.html_table import paragraph, table

_STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:110em}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:2px 8px;text-align:left}h1.found{color:#b00020}h1{color:#1b6e1b}"
)


def page(report: Report) -> str:
    """The page."""
    state = ' class="found"' if report.found else ""
    sides = [("first", report.path, report.format), ("second", report.other_path, report.other_format)]
    parts = [
        f"<h1{state}>{escape(report.answer)}</h1>", paragraph(report.why),
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
    head = (
        f'<head><meta charset="utf-8"><title>{escape(report.answer)}: checkpoints</title><style>{_STYLE}</style></head>'
    )
    return f'<!doctype html><html lang="en">{head}<body>{"".join(parts)}</body></html>'


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
