"""Commands that convert files: ``code_mapping``, ``parse`` and ``data2db``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question
from probe.backends.protocol import execution_of
from probe.common.interfaces import TensorFile
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.kernels.code_mapping import Mapped
    from probe.kernels.parsing import AtbTensor, Writer


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


# --- parse


class Parse(Question):
    """Convert tensors that ATB wrote on Ascend (*.bin) to files of numpy or torch."""

    name = "parse"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-d", "--dump_path", metavar="PATH", type=arguments.path, required=True, help="a file, or a folder of them")
        add("-t", "--type", choices=["npy", "pt"], default="npy", help="what is written: .npy or .pt (npy)")
        arguments.add_output(parser, "files")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.kernels.parsing import parse, write_npy

        write = write_npy if args.type == "npy" else _torch_writer()
        done = []
        for each in parse(args.dump_path, args.output_path, f".{args.type}", write):
            if each.problem:
                invocation.problem(each.problem)
            else:
                done.append(each)
        content = [
            {"source": each.source, "file": each.target, "dtype": each.dtype, "shape": list(each.shape)}
            for each in done
        ]
        lines = [f"{each.target}: {each.dtype} {list(each.shape)}" for each in done]
        return Answer(lambda: lines, lambda: {"files": content})


def _torch_writer() -> Writer:
    """The writer of ``.pt`` files.

    Raises:
        MissingDependency: torch is not installed.
    """
    from probe.backends import loader
    from probe.common import files

    adapter = loader.load("torch")

    def write(path: str, tensor: AtbTensor) -> None:
        made = execution_of(adapter).tensor(tensor.values, tensor.dtype, "cpu")
        content = adapter.tensors.tensor_file(made, copied=True)
        assert isinstance(content, TensorFile)
        with files.replacing(path) as stream:
            for part in (content.head, content.data, content.tail):
                stream.write(part)

    return write


# --- data2db


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
        from probe.api.rules import writer
        from probe.common.data_files import read_object

        mapping: Optional[dict[str, Any]] = None if args.mapping is None else read_object(args.mapping)  # noqa: UP045
        path = writer("monitor", self.name)(args.data, args.db, mapping)
        return Answer(lambda: [path], lambda: {"file": path})
