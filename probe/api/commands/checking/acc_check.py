"""``msprobe acc_check`` and ``msprobe multi_acc_check``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Answer, Question
from probe.common import log
from probe.common.errors import MsprobeException
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.precheck.options import PrecheckOptions
    from probe.precheck.output.precheck_report import Report

_MOST_SPLITS = 64


class AccCheck(Question):
    """Run each recorded call again alone and judge it against a result of higher precision.

    FILE is the dump.json of a run collected at level L1 or mix. For the folder of a step or of a run each dump in it
    is checked, with tables of its own. The status is 0 if every call passes, 1 if one fails, 2 if a dump cannot be
    checked or no call of it be run.
    """

    name = "acc_check"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-api_info", "--api_info_file", metavar="FILE", type=arguments.path, required=True, help="a dump.json")
        add("-o", "--out_path", metavar="DIR", type=arguments.path, default="./", help="for the tables (./)")
        add(
            "-d", "--device", metavar="DEVICE", nargs="+", default=[],
            help="cpu, cuda:0, npu:0, or a number; recorded judges the results of the dump (the accelerator, else cpu)",
        )  # fmt: skip
        add(
            "-csv_path",
            "--result_csv_path",
            metavar="FILE",
            type=arguments.path,
            help="continue the run of this file",
        )
        add("-f", "--filter_api", action="store_true", help="check one of those calls that differ in values only")
        add("-config", "--config_path", metavar="FILE", type=arguments.path, help="white_list, black_list of acc_check")
        add("-save_error_data", action="store_true", help="write the inputs and results that fail")
        add("-j", "--jit_compile", action="store_true", help="accepted and without effect")
        add("--seed", metavar="N", type=int, default=1234, help="of generated inputs (1234)")
        arguments.add_max_memory(parser)
        arguments.add_standard(arguments.add_rules(parser, "judge the drop-in tables; named, probe writes none"))
        add("--headers", choices=["english", "msprobe"], default="english", help="form of the drop-in tables")
        add("--against", metavar="FILE", type=arguments.path, help="details of another device, for the second stage")
        arguments.add_fail_on(parser, "suspect", "suspect")
        self.add_processes(parser)

    def add_processes(self, parser: argparse.ArgumentParser) -> None:
        """Add how many processes do it."""
        several = parser.add_mutually_exclusive_group()
        several.add_argument("--jobs", metavar="N", type=arguments.processes, default=1, help="how many processes (1)")
        several.add_argument("--dask", metavar="ADDRESS", help="the same on the dask cluster of this scheduler")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.common.dump.reading.runs import dumps_in
        from probe.precheck.output.precheck_report import as_json, lines

        paths = [each.path for each in dumps_in(args.api_info_file)]
        if len(paths) == 1:
            report = _report(args, paths[0], args.out_path, invocation, watch)
            return Answer(lambda: lines(report), lambda: as_json(report), _is_failed(report, args.fail_on))
        for flag in ("result_csv_path", "against"):
            if getattr(args, flag) is not None:
                text = f"--{flag} belongs to one dump, and {args.api_info_file} holds {len(paths)}"
                raise MsprobeException(f"{text}; give the folder of one, such as {paths[0]}.")
        reports = [*_several(args, paths, invocation, watch)]
        return Answer(
            lambda: (line for report in reports for line in (f"{report.path}:", *lines(report))),
            lambda: [as_json(report) for report in reports],
            any(_is_failed(report, args.fail_on) for report in reports),
        )


def _several(
    args: argparse.Namespace, paths: list[str], invocation: Invocation, watch: ProgressCallback | None
) -> Iterator[Report]:
    for path in paths:
        # As the dumps lie: step0/rank1.
        output = os.path.join(args.out_path, os.path.relpath(path, args.api_info_file))
        try:
            yield _report(args, path, output, invocation, watch)
        except MsprobeException as error:
            invocation.problem(f"{path}: {error}")


def _report(
    args: argparse.Namespace, path: str, output: str, invocation: Invocation, watch: ProgressCallback | None
) -> Report:
    from probe.api.precheck import load
    from probe.precheck.run_cases import precheck

    report = precheck(path, _options(args, output), load, watch)
    if not report.run:
        # Nothing that could not be run is right.
        invocation.problem(f"no call of {path} could be run.")
    return report


def _is_failed(report: Report, level: str) -> bool:
    failing = {"suspect": [*report.failed, *report.suspects], "error": report.failed, "never": []}[level]
    worse = [] if report.against is None or level == "never" else report.against.worse
    return bool(failing or worse)


class MultiAccCheck(AccCheck):
    """Check the calls of a dump in several processes, on several devices where there are some.

    The same as acc_check with another number of processes: the tables are the same.
    """

    name = "multi_acc_check"

    def add_processes(self, parser: argparse.ArgumentParser) -> None:
        several = parser.add_mutually_exclusive_group()
        several.add_argument(
            "-n", "--num_splits", "--jobs", metavar="N", dest="jobs", type=_splits, default=8,
            help="number of processes, 1 to 64 (8)",
        )  # fmt: skip
        several.add_argument("--dask", metavar="ADDRESS", help="on the dask cluster of this scheduler instead")


def _splits(text: str) -> int:
    number = arguments.processes(text)
    if number > _MOST_SPLITS:
        raise argparse.ArgumentTypeError(f"{text} is too many; allowed: 1 to {_MOST_SPLITS}.")
    return number


def _options(args: argparse.Namespace, output: str) -> PrecheckOptions:
    from probe.api.questions.rules import case_rules
    from probe.calls.cases import Selection
    from probe.common.parallel.tasks import Where
    from probe.precheck.options import PrecheckOptions, read_config

    if len(set(args.device)) != len(args.device):
        raise MsprobeException(f"--device is {' '.join(args.device)}; each may be given once.")
    config = read_config(args.config_path)
    if config.error_data is not None and not args.save_error_data:
        log.warning("error_data_path has no effect without -save_error_data.", once="error-data-path")
    return PrecheckOptions(
        output=output,
        devices=args.device,
        selection=Selection(config.white_list, config.black_list, args.filter_api),
        rules=case_rules(args.rules, args.headers, args.against),
        resume=args.result_csv_path,
        error_data=(config.error_data or output) if args.save_error_data else None,
        seed=args.seed,
        max_memory=args.max_memory,
        where=Where(args.jobs, args.dask),
    )
