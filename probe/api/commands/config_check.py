"""``msprobe config_check``."""

from __future__ import annotations

import argparse
import os
from typing import Any

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question, UsageError
from probe.api.rules import MSPROBE, PROBE
from probe.common.errors import MissingDependency, MsprobeException
from probe.common.progress import ProgressCallback

_MODES = ("dump", "compare", "verl_compare", "verl_verify", "slime_compare")
_SIMILARITY = "./ckpt_similarity.json"


class ConfigCheck(Question):
    """Collect the configuration of a training, or compare two: variables, packages, hyper-parameters, weights, seeds.

    Two packs are compared, two dumps by the environments next to their steps, or two checkpoints: RUN with BASELINE,
    or -c with the baseline first. -d writes a pack; nothing is executed, and no secret goes into it. -vc, -vv and -sc
    read start-up logs of verl and slime. The status is 1 if a difference is found that matters (warning or error).
    """

    name = "config_check"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_run(parser, "target", "a pack, a dump or a checkpoint")
        text = "what it is compared with; with -c: a config_check.json whose differences are accepted, as --accept"
        arguments.add_baseline(parser, "baseline", text)
        modes = parser.add_mutually_exclusive_group()
        add = modes.add_argument
        add(
            "-d",
            "--dump",
            metavar="FILE",
            nargs="*",
            type=arguments.path,
            help="collect; with scripts, YAML, JSON, TOML",
        )
        add(
            "-c",
            "--compare",
            metavar=("BASELINE", "RUN"),
            nargs=2,
            type=arguments.path,
            help="compare packs, dumps, checkpoints; msProbe's order",
        )
        add(
            "-vc", "--verl_compare", metavar=("NPU", "BENCH"), nargs=2, type=arguments.path, help="compare logs of verl"
        )
        add("-vv", "--verl_verify", metavar="FILE", nargs="+", type=arguments.path,
            help="compare a log of verl with recommended values: [BENCH.yaml] LOG")  # fmt: skip
        add(
            "-sc",
            "--slime_compare",
            metavar=("NPU", "BENCH"),
            nargs=2,
            type=arguments.path,
            help="compare logs of slime",
        )
        add = parser.add_argument
        text = "the pack, or the folder for the files"
        add("-o", "--output_path", "--output", metavar="PATH", type=arguments.path, help=text)
        add("--overwrite", action="store_true", help="write into a folder that has files already")
        add("--xlsx", action="store_true", help="with -c: fail if result.xlsx cannot be written")
        add(
            "--ignore",
            metavar="NAME",
            action="append",
            default=[],
            help="leave out differences, such as pip/pytest, NCCL_*",
        )
        add("--accept", metavar="FILE", type=arguments.path, help="a config_check.json whose differences are accepted")
        arguments.add_rules(
            parser, "judge packs (probe); those of msProbe write result.xlsx as it does", (PROBE, MSPROBE)
        )

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        set_sides(args)
        if args.compare is None and (args.xlsx or args.ignore or args.accept or args.rules):
            raise MsprobeException(
                "--xlsx, --ignore, --accept and --rules compare; leave them out, or give RUN and BASELINE."
            )
        if args.dump is not None:
            return _collected(args)
        if args.compare is not None:
            return _compared(args, invocation, watch)
        return _logs(args)


def set_sides(args: argparse.Namespace) -> None:
    """Set ``compare`` from RUN and BASELINE, and ``accept`` from what ``--baseline`` means with -c.

    Raises:
        UsageError: nothing is asked for, or two things are.
    """
    mode = next((mode for mode in _MODES if getattr(args, mode) is not None), None)
    if args.target is None and mode is None:
        raise UsageError("nothing to do; give RUN and BASELINE, or -d, -c, -vc, -vv or -sc")
    if args.target is not None and mode is not None:
        raise UsageError(f"{args.target} and --{mode} are given; give one of them")
    if mode == "compare":
        args.accept, args.baseline = args.accept or args.baseline, None
    elif mode is None:
        args.compare = [arguments.required(args.baseline, "BASELINE"), args.target]
    elif args.baseline is not None:
        raise UsageError(f"--baseline {args.baseline} belongs to RUN or to -c; leave it out")


# --- collecting


def _collected(args: argparse.Namespace) -> Answer:
    from probe.common.archives import check_name
    from probe.configcheck.collect import collect
    from probe.configcheck.pack import DEFAULT_PACK

    output = args.output_path or DEFAULT_PACK
    check_name(output)
    found = collect(args.dump, output)
    withheld = f"withheld: {found.withheld} values, which may hold secrets or decide nothing"
    text = f"collected: {', '.join(found.names)}; {withheld}"
    content = {"collected": found.names, "withheld": found.withheld, "notes": found.notes, "files": [output]}
    return Answer(lambda: [text, *found.notes, output], lambda: content)


# --- comparing


def _compared(args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
    from probe.api.rules import rules_for
    from probe.common.report.xlsx import load_openpyxl
    from probe.configcheck import output as written
    from probe.configcheck.compare import compare_packs, read_side, without
    from probe.configcheck.output import lines

    golden, target = args.compare
    if all(_is_checkpoint(path) for path in (golden, target)):
        return _checkpoints(args, watch)
    # Before the work, which would be lost.
    sheets = rules_for("packs", args.rules)
    unwritten = ""
    try:
        load_openpyxl()
    except MissingDependency as error:
        if args.xlsx or sheets is not None:
            raise
        unwritten = f"{written.WORKBOOK} is not written: {error}"
    packs = read_side(golden), read_side(target)
    folder = args.output_path or written.DEFAULT_FOLDER
    written.make_output_folder(folder, args.overwrite)
    if sheets is not None:
        rows = sheets(*packs)
        files = [written.write_workbook(rows, folder), *written.write_members(packs, folder)]
        levels = rows["summary"][1:]
        return Answer(
            lambda: [*(f"{name}: {level}" for name, level in levels), *files],
            lambda: {"sheets": rows, "files": files},
            any(level != "pass" for _, level in levels),
        )
    comparison = without(compare_packs(*packs), args.ignore, args.accept)
    files = written.write(comparison, folder)
    if not unwritten:
        files.append(written.write_workbook(written.sheets_of(comparison), folder))
    files += written.write_members(packs, folder)
    return Answer(
        lambda: [*lines(comparison), *files, *([unwritten] if unwritten else [])],
        lambda: {**comparison.as_json(), "files": files},
        comparison.answer != "pass",
    )


def _is_checkpoint(path: str) -> bool:
    """True if a path is neither a pack nor the dump of a run."""
    from probe.common.dump.layout import environments_in, steps_in

    if os.path.isdir(path):
        return not environments_in(path) and not steps_in(path)
    return os.path.exists(path) and not path.endswith(".zip")


def _checkpoints(args: argparse.Namespace, watch: ProgressCallback | None) -> Answer:
    """The comparison of checkpoints; `ckpt_compare` has all its options."""
    if args.xlsx or args.ignore or args.accept or args.rules:
        raise MsprobeException("two checkpoints are given; msprobe ckpt_compare has the options for them.")
    from probe.api.commands.ckpt_compare import checkpoints_answer
    from probe.api.rules import writer
    from probe.checkpoint.comparison import compare_checkpoints

    output = args.output_path or _SIMILARITY
    if os.path.lexists(output) and not args.overwrite:
        raise MsprobeException(f"{output} exists; give --overwrite to replace it, or another file with -o.")
    # Before the work, which would be lost.
    write = writer("similarity", "config_check -c of two checkpoints")
    one, other = args.compare
    report = compare_checkpoints(one, other, None, watch)
    write(report, output)
    return checkpoints_answer(report, [output])


# --- logs


def _logs(args: argparse.Namespace) -> Answer:
    from probe.configcheck import logs
    from probe.configcheck.output import make_output_folder

    kind = "slime" if args.slime_compare is not None else "verl"
    if args.verl_verify is not None:
        *bench, log = args.verl_verify
        if len(bench) > 1:
            raise MsprobeException(f"-vv takes one or two files: [BENCH.yaml] LOG; {len(args.verl_verify)} are given.")
        wanted = logs.recommended_of(bench[0]) if bench else None
        target = logs.read_log(log, kind)
        rows = logs.verified(target, wanted)
        folder, table, head = "verl_param_verify_result", "hyper_params_verify.csv", logs.VERIFIED
        configs: dict[str, Any] = {"tgt_config.json": target}
    else:
        npu, bench_log = args.verl_compare or args.slime_compare
        one, other = logs.read_log(npu, kind), logs.read_log(bench_log, kind)
        rows = logs.compared(one, other)
        folder, table, head = f"{kind}_param_compare_result", "hyper_params_compare.csv", logs.COMPARED
        configs = {"NPU_config.json": one, "bench_config.json": other}
    output = args.output_path or f"./{folder}"
    make_output_folder(output, args.overwrite)
    files = logs.write_logs(output, configs, table, head, rows)
    differing = [f"  {name}: {head[1]} {a}, {head[2]} {b}" for name, a, b, is_equal in rows if not is_equal]
    return Answer(
        lambda: [f"{len(differing)} of {len(rows)} parameters differ", *differing, *files],
        lambda: {"parameters": [dict(zip(head, row)) for row in rows], "files": files},
        bool(differing),
    )
