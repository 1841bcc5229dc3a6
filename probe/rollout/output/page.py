"""The page: one HTML file without scripts that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from probe.common.html_table import paragraph, table
from probe.rollout.numbers import GROUPED
from probe.rollout.output import charts
from probe.rollout.output.text import Decode, lines, sequences
from probe.rollout.report import RolloutReport

# The colours of the graph view, light and dark.
_STYLE = """:root{color-scheme:light dark;--text:#1c2126;--soft:#5d6872;--back:#fff;--panel:#f4f6f8;--line:#d9dfe4;
--good:#009e73;--bad:#c9371c;--info:#0072b2}
@media screen and (prefers-color-scheme:dark){:root{--text:#e4e9ed;--soft:#9aa7b2;--back:#15191d;--panel:#1e2429;
--line:#343d45;--good:#33c79b;--bad:#ff7a5c;--info:#4fb0ea}}
body{margin:1.5em;font:13px/1.4 system-ui,sans-serif;color:var(--text);background:var(--back)}
h1{font-size:17px;border-left:4px solid var(--good);padding-left:10px}h1.found{border-color:var(--bad)}
h2{font-size:14px;margin:1.5em 0 .4em}p{margin:.2em 0;color:var(--soft)}svg{max-width:100%;height:auto}
table{border-collapse:collapse}td,th{border:1px solid var(--line);padding:1px 8px;text-align:left}
.bar,.dot{fill:var(--info)}.line{fill:none;stroke:var(--info);stroke-width:2}text{font-size:10px;fill:var(--soft)}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(report: RolloutReport, decode: Decode | None = None) -> str:
    """The page of a report."""
    title, *others = lines(report, decode)
    parts = [f"<h1{' class=found' if report.found else ''}>{escape(title)}</h1>", *map(paragraph, others)]
    if len(report.tokens):
        parts += _charts(report)
        rows = [(each["sequence"], each["step"], each["rank"], *_shown(each[name] for name in GROUPED), each["anomaly"])
                for each in sequences(report)]  # fmt: skip
        columns = ("sequence", "step", "rank", *GROUPED, "anomaly")
        parts += ["<h2>Sequences with the largest differences</h2>", table(columns, rows)]
        parts += ["<h2>Numbers</h2>", table(("name", "value"), zip(report.numbers, _shown(report.numbers.values())))]
    head = (
        f'<head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(report.kind)}: rollout against training</title><style>{_STYLE}{charts.shades()}</style></head>"
    )
    return f'<!doctype html>\n<html lang="en">{head}<body>{"".join(parts)}</body></html>\n'


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
