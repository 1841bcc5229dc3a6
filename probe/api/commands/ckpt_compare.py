"""``msprobe ckpt_compare``."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question, UsageError
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.checkpoint.report import CheckpointOptions, Report

_FORMATS = ("json", "xlsx", "html", "msprobe")
_SIMILARITY = "ckpt_similarity.json"


class CkptCompare(Question):
    """Compare the weights of two checkpoints, whatever their formats, layouts and names.

    A and B are files or folders: safetensors, files of torch.save, .npz, Hugging Face, distributed checkpoints of
    PyTorch (DCP, FSDP), Megatron, DeepSpeed ZeRO, MindSpore, or fingerprints of these. The status is 0 if nothing but
    rounding differs, 1 if something does, 2 if a checkpoint is refused.

    With --fingerprint A alone, A.fingerprint is written: a kilobyte for each tensor, which can be compared in place of
    the checkpoint.
    """

    name = "ckpt_compare"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("one", metavar="A", type=arguments.path, help="a checkpoint: the run under test")
        arguments.add_baseline(parser, "other", "another: the baseline", metavar="B")
        add("--fingerprint", action="store_true", help="write A.fingerprint, or -o FILE, to be compared in place of A")
        add("--map", metavar="FILE", type=arguments.path, help="names of A and their counterparts in B, in YAML")
        add("--heads", metavar="N", type=int, nargs="+", help="attention heads, and groups of them if there are fewer")
        add(
            "--tp",
            metavar="N",
            type=int,
            default=0,
            help="tensor-parallel ranks, for files of ranks that do not say so",
        )
        add("--pp", metavar="N", type=int, default=1, help="pipeline stages, likewise")
        add("--optimizer", action="store_true", help="compare the state of the optimizers as well")
        add("--weights", default="master", metavar="KIND", help="of ZeRO: master (float32, the default) or model")
        add("-o", "--output_path", metavar="DIR", type=arguments.path, help="write files there, or that fingerprint")
        add("--format", nargs="+", choices=_FORMATS, default=["html", "xlsx"], help="which files (html xlsx)")
        add("--overwrite", action="store_true", help="replace files that are there")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.api.rules import writer
        from probe.checkpoint import output as files
        from probe.checkpoint.comparison import compare_checkpoints
        from probe.checkpoint.report import CheckpointOptions

        if args.heads is not None and len(args.heads) > 2:
            raise UsageError(f"--heads has {len(args.heads)} values; allowed: heads, and groups of them")
        heads = None if args.heads is None else (args.heads[0], args.heads[-1])
        if args.other is None and not args.fingerprint:
            raise UsageError("the following arguments are required: B, or --fingerprint")
        if args.other is not None and args.fingerprint:
            raise UsageError(f"--fingerprint takes one checkpoint, and B is {args.other}; leave it out")
        options = CheckpointOptions(args.map, args.tp, args.pp, heads, args.optimizer, args.weights)
        if args.fingerprint:
            return _fingerprint(args, options, watch)
        write_similarity = writer("similarity", "--format msprobe") if "msprobe" in args.format else None
        if args.output_path is not None:
            names = [] if write_similarity is None else [_SIMILARITY]
            files.check(args.output_path, args.format, args.overwrite, names)
        report = compare_checkpoints(args.one, args.other, options, watch)
        written = [] if args.output_path is None else files.write(report, args.output_path, args.format)
        if write_similarity is not None and args.output_path is not None:
            written.append(os.path.join(args.output_path, _SIMILARITY))
            write_similarity(report, written[-1])
        return checkpoints_answer(report, written)


def _fingerprint(args: argparse.Namespace, options: CheckpointOptions, watch: ProgressCallback | None) -> Answer:
    """Write the fingerprint of a checkpoint."""
    from probe.checkpoint.fingerprints.making import fingerprint_checkpoint

    if args.output_path is not None and os.path.lexists(args.output_path) and not args.overwrite:
        raise UsageError(f"{args.output_path} exists; give --overwrite to replace it, or another file with -o")
    written = fingerprint_checkpoint(args.one, args.output_path, options, watch)
    return Answer(lambda: [written], lambda: {"files": [written]}, False)


def checkpoints_answer(report: Report, files: list[str]) -> Answer:
    """Return the differences of two checkpoints, and the files that show them."""
    from probe.checkpoint.output import as_json, lines

    return Answer(lambda: [*lines(report), *files], lambda: {**as_json(report), "files": files}, report.found)
