"""``msprobe trend``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Line, Question
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.monitor.trend.page import TrendPage

_OUTPUT = "./output"
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

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> TrendAnswer:
        from probe.common.errors import MsprobeException
        from probe.monitor.trend.page import write_trend

        if len(args.paths) > _MOST_RUNS:
            raise MsprobeException(f"{len(args.paths)} folders are given; allowed: up to {_MOST_RUNS} runs.")
        return TrendAnswer(write_trend(args.paths, args.output_path, watch))


@dataclass(frozen=True)
class TrendAnswer:
    """The page, and the first lines of what it shows."""

    page: TrendPage
    found: bool = False

    def lines(self) -> Iterator[Line]:
        yield from (Line(note, "dim") for note in self.page.notes)
        for each in self.page.judged:
            yield Line(f"{each.run.path}: {each.headline}")
        difference = self.page.difference
        if difference is not None:
            first_difference = difference.first
            yield Line("first difference: " + ("none" if first_difference is None else first_difference.text()))
        yield Line(self.page.path)

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"file": self.page.path, "runs": [each.as_json() for each in self.page.judged]}
        if self.page.difference is not None:
            found.update(self.page.difference.as_json())
        return found
