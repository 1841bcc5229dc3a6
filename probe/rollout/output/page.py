"""The page: one HTML file without scripts that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from probe.common.html_table import paragraph, table
from probe.common.report.page.tables import table_page
from probe.rollout.numbers import GROUPED
from probe.rollout.output import charts
from probe.rollout.output.text import Decode, lines, sequences
from probe.rollout.report import RolloutReport

_STYLE = """svg{max-width:100%;height:auto}.bar,.dot{fill:var(--info)}.line{fill:none;stroke:var(--info);stroke-width:2}
text{font-size:10px;fill:var(--soft)}
"""


def page(report: RolloutReport, decode: Decode | None = None) -> str:
    """The page of a report."""
    title, *others = lines(report, decode)
    parts = [*map(paragraph, others)]
    if len(report.tokens):
        parts += _charts(report)
        rows = [(each["sequence"], each["step"], each["rank"], *_shown(each[name] for name in GROUPED), each["anomaly"])
                for each in sequences(report)]  # fmt: skip
        columns = ("sequence", "step", "rank", *GROUPED, "anomaly")
        parts += ["<h2>Sequences with the largest differences</h2>", table(columns, rows)]
        parts += ["<h2>Numbers</h2>", table(("name", "value"), zip(report.numbers, _shown(report.numbers.values())))]
    window = f"{report.kind}: rollout against training"
    return table_page(window, title, parts, report.found, _STYLE + charts.shades())


def _charts(report: RolloutReport) -> list[str]:
    found = [
        "<h2>Differences by sequence and position</h2>",
        paragraph(f"A row for each sequence, those with the largest differences first; {charts.legend()}."),
        charts.heat_map(report),
        "<h2>Histogram of absolute differences, in nats</h2>",
        charts.histogram(report),
    ]
    steps = charts.by_step(report)
    return [*found, "<h2>Mean absolute difference by step</h2>", steps] if steps else found


def _shown(values: Iterable[object]) -> list[object]:
    return [f"{value:.6g}" if isinstance(value, float) else value for value in values]
