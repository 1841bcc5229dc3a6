"""The answer as a page: one file without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from probe.checkpoint.output.text import parameter, remarks
from probe.checkpoint.report import Parameter, Report, count_verdicts
from probe.common.html_table import paragraph, table
from probe.common.report.page.tables import table_page


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
