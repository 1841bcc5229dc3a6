"""``msprobe data2db``."""

from __future__ import annotations

import argparse
from typing import Any, Optional

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Answer, Question
from probe.common.progress import ProgressCallback


class Data2Db(Question):
    """Write the rows of a training monitor to an SQLite file, monitor_data.trend.db."""

    name = "data2db"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--data", metavar="DIR", type=arguments.path, required=True, help="the output folder of a monitor")
        add("--db", metavar="DIR", type=arguments.path, required=True, help="folder for the file")
        add("--format", choices=["auto", "monitor"], default="auto", help="kind of data (auto)")
        add("--mapping", metavar="JSON", type=arguments.path, help="a file with ordered replacements in names of rows")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.api.questions.rules import writer
        from probe.common.config.json_file import read_object

        mapping: Optional[dict[str, Any]] = None if args.mapping is None else read_object(args.mapping)  # noqa: UP045
        path = writer("monitor", self.name)(args.data, args.db, mapping)
        return Answer(lambda: [path], lambda: {"file": path})
