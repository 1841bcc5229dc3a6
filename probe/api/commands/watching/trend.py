"""``msprobe trend``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Answer, Line, Question
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.monitor.trend.page import TrendPage

_MOST_RUNS = 8


class Trend(Question):
    """Show the files of a training monitor as one HTML page: a heat map over step, rank and module, lines, and alerts.

    DIR is the output folder of a monitor. Several folders are runs beside each other; the first value by which the
    first two differ is marked.
    """

    name = "trend"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "paths", metavar="DIR", nargs="+", type=arguments.path, help=f"folders of monitors, up to {_MOST_RUNS} runs"
        )
        arguments.add_output(parser, "page")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.common.errors import MsprobeException
        from probe.monitor.trend.page import write_trend

        if len(args.paths) > _MOST_RUNS:
            raise MsprobeException(f"{len(args.paths)} folders are given; allowed: up to {_MOST_RUNS} runs.")
        page = write_trend(args.paths, args.output_path, watch)
        content: dict[str, Any] = {"file": page.path, "runs": [each.as_json() for each in page.judged]}
        if page.difference is not None:
            content.update(page.difference.as_json())
        return Answer(lambda: _lines(page), lambda: content)


def _lines(page: TrendPage) -> Iterator[Line]:
    yield from ((note, "dim") for note in page.notes)
    for each in page.judged:
        yield f"{each.run.path}: {each.headline}"
    if page.difference is not None:
        first = page.difference.first
        yield "first difference: " + ("none" if first is None else first.text())
    yield page.path
