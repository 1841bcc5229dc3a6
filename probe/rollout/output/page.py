"""The page: one HTML file without scripts that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probe.common.html_table import paragraph, table
from probe.common.report.page.tables import table_page
from probe.rollout.numbers import GROUPED
from probe.rollout.output import charts
from probe.rollout.output.text import Decode, advice, sequences, summary, worst_tokens
from probe.rollout.report import RolloutReport

_STYLE = """svg{max-width:100%;height:auto;display:block}.bar,.dot{fill:var(--info)}
.line{fill:none;stroke:var(--info);stroke-width:2}.axis{stroke:var(--line)}text{font-size:11px;fill:var(--soft)}
.middle{text-anchor:middle}.end{text-anchor:end}.wide{overflow-x:auto}td,th{white-space:nowrap}
p{max-width:110ch}.next p{color:var(--text)}
"""


def page(report: RolloutReport, decode: Decode | None = None) -> str:
    """The page of a report."""
    title, *others = summary(report)
    parts = [*map(paragraph, others)]
    if len(report.tokens):
        if report.found:
            parts += ['<div class="next">', *map(paragraph, advice(report)), "</div>"]
        parts += _charts(report)
        if report.found:
            parts += ["<h2>Tokens with the largest differences</h2>", _table(worst_tokens(report, decode))]
        columns = ("sequence", "step", "rank", *GROUPED, "anomaly")
        rows = [{name: each[name] for name in columns} for each in sequences(report)]
        parts += ["<h2>Sequences with the largest differences</h2>", _table(rows)]
        numbers = [{"name": name, "value": value} for name, value in report.numbers.items()]
        parts += ["<h2>Numbers</h2>", _table(numbers)]
    window = f"{report.kind}: rollout against training"
    return table_page(window, title, parts, report.found, _STYLE + charts.shades())


def _charts(report: RolloutReport) -> list[str]:
    found = [
        "<h2>Differences by sequence and position</h2>",
        paragraph("A row for each sequence, those with the largest differences first, and a column for each position."),
        charts.legend(),
        charts.heat_map(report),
        "<h2>Histogram of absolute differences, in nats</h2>",
        charts.histogram(report),
    ]
    steps = charts.by_step(report)
    return [*found, "<h2>Mean absolute difference by step</h2>", steps] if steps else found


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    """A table of the columns in which any row has something."""
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] not in (None, "") for row in rows)]
    cells = ([_shown(row[name]) for name in columns] for row in rows)
    return f'<div class="wide">{table(columns, cells)}</div>'


def _shown(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
