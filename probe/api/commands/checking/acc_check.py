"""``msprobe acc_check`` and ``msprobe multi_acc_check``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.common.errors import MsprobeException
from probe.common.terminal_text import print_text

if TYPE_CHECKING:
    from probe.precheck.options import PrecheckOptions
    from probe.precheck.output.report import Report

_PASSED, _REFUSED, _FAILED = 0, 1, 3
_MOST_SPLITS = 64


class AccCheck:
    """Run each recorded call again alone and judge it against a result of higher precision.

    FILE is the dump.json of a run collected at level L1 or mix. For the folder of a step or of a run each dump in it
    is checked, with tables of its own. The status is 0 where every call passes, 3 where one fails, 1 where a dump
    cannot be checked or no call of it be run, 2 for a wrong command.
    """

    name = "acc_check"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("-api_info", "--api_info_file", metavar="FILE", type=arguments.path, required=True, help="a dump.json")
        add("-o", "--out_path", metavar="DIR", type=arguments.path, default="./", help="for the tables (./)")
        add(
            "-d", "--device", metavar="DEVICE", nargs="+", default=[],
            help="cpu, cuda:0, npu:0, or a number; recorded judges the results of the dump (the accelerator, else cpu)",
        )  # fmt: skip
        add("-csv_path", "--result_csv_path", metavar="FILE", type=arguments.path, help="go on with this table")
        add("-f", "--filter_api", action="store_true", help="check one of those calls that differ in values only")
        add("-config", "--config_path", metavar="FILE", type=arguments.path, help="white_list, black_list of acc_check")
        add("-save_error_data", action="store_true", help="write the inputs and results that fail")
        add("-j", "--jit_compile", action="store_true", help="accepted and without effect")
        add("--seed", metavar="N", type=int, default=1234, help="of generated inputs (1234)")
        add(
            "--standard", choices=["documented", "26.2"], default="documented",
            help="by which rules of msProbe its columns are judged (documented)",
        )  # fmt: skip
        add("--headers", choices=["english", "msprobe"], default="english", help="what the drop-in tables look like")
        add("--against", metavar="FILE", type=arguments.path, help="details of another device, for the second stage")
        add(
            "--fail-on", dest="fail_on", choices=["suspect", "error", "never"], default="error",
            help="from which verdict on the status is 3 (error)",
        )  # fmt: skip
        add("--json", action="store_true", help="print the result as JSON")
        self.add_processes(parser)

    def add_processes(self, parser: argparse.ArgumentParser) -> None:
        """Add how many processes do it."""
        several = parser.add_mutually_exclusive_group()
        several.add_argument("--jobs", metavar="N", type=arguments.processes, default=1, help="how many processes (1)")
        several.add_argument("--dask", metavar="ADDRESS", help="the same on the dask cluster of this scheduler")

    def run(self, args: argparse.Namespace) -> int:
        try:
            return self._check(args)
        except (MsprobeException, OSError) as error:
            print_text(f"msprobe {self.name}: {error}", sys.stderr)
            return _REFUSED

    def _check(self, args: argparse.Namespace) -> int:
        from probe.common.dump.reading.runs import dumps_in

        paths = [each.path for each in dumps_in(args.api_info_file)]
        if len(paths) == 1:
            report = self._report(args, paths[0], args.out_path)
            _print([report], args.json)
            return _status(report, args.fail_on)
        for flag in ("result_csv_path", "against"):
            if getattr(args, flag) is not None:
                text = f"--{flag} belongs to one dump, and {args.api_info_file} holds {len(paths)}"
                raise MsprobeException(f"{text}; give the folder of one, such as {paths[0]}.")
        return self._check_several(args, paths)

    def _check_several(self, args: argparse.Namespace, paths: list[str]) -> int:
        reports: list[Report] = []
        statuses = []
        for path in paths:
            # As the dumps lie: step0/rank1.
            output = os.path.join(args.out_path, os.path.relpath(path, args.api_info_file))
            try:
                report = self._report(args, path, output)
            except MsprobeException as error:
                print_text(f"msprobe {self.name}: {path}: {error}", sys.stderr)
                statuses.append(_REFUSED)
                continue
            reports.append(report)
            statuses.append(_status(report, args.fail_on))
            if not args.json:
                print_text(f"{path}:")
                _print([report], as_json=False)
        if args.json:
            _print(reports, as_json=True, as_list=True)
        return max(statuses)

    def _report(self, args: argparse.Namespace, path: str, output: str) -> Report:
        from probe.api.precheck import load
        from probe.common.report.progress_bar import Progress
        from probe.precheck.runner import precheck

        quiet = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
        with quiet, Progress(not args.json) as progress:
            return precheck(path, _options(args, output), load, progress.watch)


def _print(reports: list[Report], as_json: bool, as_list: bool = False) -> None:
    from probe.precheck.output import report as texts

    if as_json:
        found = [texts.as_json(report) for report in reports]
        print(json.dumps(found if as_list else found[0], allow_nan=False, indent=1))
        return
    for report in reports:
        for text in texts.lines(report):
            print_text(text)


class MultiAccCheck(AccCheck):
    """Check the calls of a dump in several processes, on several devices where there are some.

    The same as acc_check with another number of processes: the tables are the same.
    """

    name = "multi_acc_check"

    def add_processes(self, parser: argparse.ArgumentParser) -> None:
        several = parser.add_mutually_exclusive_group()
        several.add_argument(
            "-n", "--num_splits", "--jobs", metavar="N", dest="jobs", type=_splits, default=8,
            help="how many processes, 1 to 64 (8)",
        )  # fmt: skip
        several.add_argument("--dask", metavar="ADDRESS", help="on the dask cluster of this scheduler instead")


def _splits(text: str) -> int:
    number = arguments.processes(text)
    if number > _MOST_SPLITS:
        raise argparse.ArgumentTypeError(f"{text} is too many; allowed: 1 to {_MOST_SPLITS}.")
    return number


def _options(args: argparse.Namespace, output: str) -> PrecheckOptions:
    from probe.calls.cases import Selection
    from probe.common.parallel.tasks import Where
    from probe.precheck.config import read_config
    from probe.precheck.options import PrecheckOptions

    if len(set(args.device)) != len(args.device):
        raise MsprobeException(f"--device is {' '.join(args.device)}; each may be given once.")
    config = read_config(args.config_path)
    return PrecheckOptions(
        output=output,
        devices=args.device,
        selection=Selection(config.white_list, config.black_list, args.filter_api),
        standard=args.standard,
        headers=args.headers,
        resume=args.result_csv_path,
        error_data=(config.error_data or output) if args.save_error_data else None,
        seed=args.seed,
        where=Where(args.jobs, args.dask),
        against=args.against,
    )


def _status(report: Report, fail_on: str) -> int:
    if report.results and not report.run:
        # Where nothing could be run, nothing is right.
        return _REFUSED
    failing = {"suspect": [*report.failed, *report.suspects], "error": report.failed, "never": []}[fail_on]
    worse = report.failed_second_stage if fail_on != "never" else []
    return _FAILED if failing or worse else _PASSED
