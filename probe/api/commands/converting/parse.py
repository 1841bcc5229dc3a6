"""``msprobe parse``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Answer, Question
from probe.backends.protocol import execution_of
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.kernels.parsing import AtbTensor, Writer


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
        assert content is not None
        with files.replacing(path) as stream:
            for part in (content.head, content.data, content.tail):
                stream.write(part)

    return write
