"""``msprobe code_mapping``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Answer, Question
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.kernels.code_mapping import Mapped


class CodeMapping(Question):
    """Link kernel dumps of MindSpore's graphs to the lines of Python that the kernels come from."""

    name = "code_mapping"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--ir", metavar="FILE", type=arguments.path, required=True,
            help="the graph as MindSpore writes it with save_graphs: anf_after_graph_build*.ir, graph_build_*.ir",
        )  # fmt: skip
        add(
            "--dump_data", metavar="PATH", type=arguments.path, required=True,
            help="a tensor file, a statistic.csv, or a folder of these",
        )  # fmt: skip
        add("-o", "--output", metavar="DIR", type=arguments.path, default="./", help="for the tables (./)")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.kernels.code_mapping import map_code

        mapped = map_code(args.ir, args.dump_data, args.output)
        content = {"linked": mapped.linked, "unlinked": dict(mapped.unlinked), "files": mapped.files}
        return Answer(lambda: _lines(mapped), lambda: content)


def _lines(mapped: Mapped) -> Iterator[str]:
    yield f"{mapped.linked} of {mapped.linked + sum(mapped.unlinked.values())} dumped tensors linked to the source"
    for why, count in mapped.unlinked.most_common():
        yield f"  not linked, {count}: {why}"
    yield from mapped.files
