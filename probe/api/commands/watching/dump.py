"""``msprobe monitor dump``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Line, Question
from probe.common.progress import ProgressCallback


class MonitorDump(Question):
    """Tell a running job that is monitored to dump its next step.

    DIR is the output folder of its monitor. The monitor looks once a second, between two steps, and writes the dump to
    dump_step<N> in the folder of each rank.
    """

    name = "dump"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("path", metavar="DIR", type=arguments.path, help="the output folder of a monitor")
        add("--rank", metavar="N", type=_rank, action="append", default=[], help="only this rank; may be repeated")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Requested:
        from probe.monitor.requests import request_dump

        return Requested(request_dump(args.path, tuple(args.rank)))


def _rank(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank; allowed: 0 and more.")
    return int(text)


@dataclass(frozen=True)
class Requested:
    """The requests that were written."""

    files: list[str]
    found: bool = False

    def lines(self) -> Iterator[Line]:
        yield from (Line(f"requested: {each}") for each in self.files)

    def as_json(self) -> dict[str, Any]:
        return {"files": self.files}
