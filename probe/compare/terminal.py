"""A summary for people: coloured on a terminal that rich can serve, plain lines everywhere else."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from probe.common import log
from probe.compare.result import ERROR, PASS, WARNING, ComparisonResult, Mode
from probe.compare.summary import Summary
from probe.compare.tables import VALUES

_COLOURS = {PASS: "green", WARNING: "yellow", ERROR: "bold red"}


def lines(summary: Summary) -> list[tuple[str, str]]:
    """The summary line by line, each with the verdict it is about or an empty text."""
    where = " ".join(part for part in (summary.step, summary.label) if part)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in summary.counts.items())
    found = [(f"{where + ': ' if where else ''}{summary.rows} rows by {summary.mode}: {counts}", summary.worst)]
    if summary.suspects:
        first, *others = summary.suspects
        found.append((f"  first: {_named(first.record, first.golden_record)}", first.verdict))
        found.append((f"    {first.message.partition(': ')[2]}", ""))
        if first.stack:
            found.append((f"    {' '.join(first.stack[0].split())}", ""))
        if others:
            names = ", ".join(suspect.record for suspect in others)
            more = summary.suspect_records - len(summary.suspects)
            found.append((f"  next: {names}{f' and {more} more' if more else ''}", ""))
    if summary.target_only or summary.golden_only:
        text = f"  without match: {summary.target_only} items of the target, {summary.golden_only} of the golden dump"
        found.append((text, WARNING))
    found += [(f"  table: {table}", "") for table in summary.tables]
    return found


def _named(record: str, golden: str) -> str:
    return record if golden in ("", record) else f"{record} (golden: {golden})"


def print_metrics(result: ComparisonResult) -> None:
    """A log line for each pair of tensors whose values were compared."""
    if result.mode is not Mode.TENSOR:
        return
    for row in result.rows:
        if row.target is not None and row.golden is not None:
            metrics = ", ".join(f"{name} {value}" for name, value in zip(VALUES, row.metrics))
            log.info(f"{row.target.name} and {row.golden.name}: {metrics}")


def show(summary: Summary, seconds: float, stream: TextIO | None = None) -> None:
    """Print the summary; `seconds` is how long the comparison took."""
    stream = stream or sys.stdout
    console = _console(stream)
    told = [*lines(summary), (f"  time: {seconds:.2f} s", "")]
    for text, verdict in told:
        if console is None:
            print(text, file=stream)
        else:
            console.print(text, style=_COLOURS.get(verdict), markup=False, highlight=False, soft_wrap=True)


def _console(stream: TextIO) -> Any:
    """A rich console, or ``None`` where there is no terminal or rich is not installed."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)
