"""``msprobe merge_result``."""

from __future__ import annotations

import argparse
from typing import Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Answer, Question
from probe.common.progress import ProgressCallback


class MergeResult(Question):
    """Collect a metric of communication calls over all ranks, from the tables that compare wrote.

    The file of -config holds `api:`, a list of names such as Distributed.all_reduce, and, if you like,
    `compare_index:`, a list of columns.
    """

    name = "merge_result"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        required: dict[str, Any] = {"type": arguments.path, "required": True}
        tables = "holds compare_result_rank<N>_<time>.csv or .xlsx"
        add("-i", "--input_dir", metavar="DIR", help=tables, **required)
        add("-o", "--output_dir", metavar="DIR", help="for the workbook", **required)
        add("-config", "--config-path", metavar="FILE", help="what to collect", **required)

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.compare.ranks.merge import load_choice, merge

        path = merge(args.input_dir, args.output_dir, load_choice(args.config_path))
        return Answer(lambda: [path], lambda: {"files": [path]})
