"""``msprobe pack``."""

from __future__ import annotations

import argparse

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question
from probe.common.progress import ProgressCallback


class Pack(Question):
    """Make one file of a run, to be mailed: statistics, sketches, call tree, stacks and environment.

    The values of tensors are not in it. compare, graph_visualize, show and overflow_check take the file in the place of
    the folder.
    """

    name = "pack"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("run_path", metavar="RUN", type=arguments.path, help="what was collected: a dump_path, or a folder in it")
        add("-o", "--output", metavar="FILE", type=arguments.path, help="the pack (RUN.zip)")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.api.packing import pack

        found = pack(args.run_path, args.output)
        content = {
            "files": [found.path],
            "dumps": len(found.dumps),
            "records": found.records,
            "bytes": found.size,
            "withheld": found.withheld,
            "notes": found.notes,
        }
        return Answer(lambda: [found.text, *found.notes, found.path], lambda: content)
