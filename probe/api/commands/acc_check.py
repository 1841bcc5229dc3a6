"""Commands that run recorded calls again.

``acc_check``, ``multi_acc_check``, ``api_precision_compare`` and ``replay``.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question
from probe.api.rules import rules_for, writer
from probe.common import log
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.precheck.options import PrecheckOptions
    from probe.precheck.report import Report

_MOST_SPLITS = 64
"""Processes in which the cases of one dump are checked, at most; a guess."""


class AccCheck(Question):
    """Run each recorded call again alone and judge it against a result of higher precision.

    RUN is the dump.json of a run collected at level L1 or mix. For the folder of a step or of a run each dump in it
    is checked, with tables of its own. The status is 0 if every call passes, 1 if one fails, 2 if a dump cannot be
    checked or no call of it be run.
    """

    name = "acc_check"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        arguments.add_run(parser, "api_info_file", "what was collected", "-api_info", "--api_info_file")
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
        text = "details of another device, for the second stage"
        add("--baseline", "--against", dest="against", metavar="FILE", type=arguments.path, help=text)
        arguments.add_fail_on(parser, "suspect", "suspect")
        self.add_processes(parser)

    def add_processes(self, parser: argparse.ArgumentParser) -> None:
        """Add how many processes do it."""
        several = parser.add_mutually_exclusive_group()
        several.add_argument("--jobs", metavar="N", type=arguments.processes, default=1, help="how many processes (1)")
        several.add_argument("--dask", metavar="ADDRESS", help="the same on the dask cluster of this scheduler")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.common.dump.reading.runs import dumps_in
        from probe.common.dump.reading.unpacked import refuse_pack
        from probe.precheck.report import as_json, lines

        arguments.required(args.api_info_file, "RUN")
        refuse_pack(args.api_info_file, self.name)
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
    from probe.api.replaying import load
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
    from probe.api.rules import case_rules
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


# --- api precision compare


_MOST_SHOWN = 20
"""Wrong cases that the terminal lists: a guess, a screen full."""


class ApiPrecisionCompare(Question):
    """Judge the errors of an NPU by those of a GPU, from the details that acc_check wrote on both.

    The status is 0 if all passes, 1 if something does not, 2 if a file is no table of details or no case can be judged.
    """

    name = "api_precision_compare"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        table = "accuracy_checking_details_<time>.csv of the"
        arguments.add_run(parser, "npu_csv_path", f"{table} NPU", "-npu", "--npu_csv_path")
        arguments.add_baseline(parser, "gpu_csv_path", f"{table} GPU", "-gpu", "--gpu_csv_path")
        add("-o", "--out_path", metavar="DIR", type=arguments.path, default="./", help="for the two tables (./)")
        arguments.add_standard(arguments.add_rules(parser, "judge (probe)"))
        add("--headers", choices=["english", "msprobe"], default="english", help="of the tables (english)")
        arguments.add_fail_on(parser, "warning", "error")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        npu, gpu = arguments.required(args.npu_csv_path, "RUN"), arguments.required(args.gpu_csv_path, "BASELINE")
        for path in (npu, gpu):
            if not os.path.isfile(path):
                needed = "give a table accuracy_checking_details_<time>.csv"
                raise FileCheckException(f"{path}: there is no such file; {needed}.")
        compare_devices = writer("devices", self.name)
        method = rules_for("cases", args.rules)
        found = compare_devices(npu, gpu, args.out_path, method, args.headers)
        if not found.is_any_judged:
            invocation.problem(f"no case of {npu} and {gpu} can be judged.")
        failing = {"warning": {"warning", "error"}, "error": {"error"}, "never": set()}[args.fail_on]
        counts = Counter(case.worst for case in found.cases)
        content = {"counts": dict(counts), "cases": [vars(case) for case in found.cases], "files": list(found.paths)}
        is_failed = bool(failing.intersection(found.statuses))
        return Answer(lambda: [*_lines(found.cases, counts), *found.paths], lambda: content, is_failed)


def _lines(cases: Sequence[Any], counts: Mapping[str, int]) -> Iterator[str]:
    yield f"{len(cases)} cases: " + ", ".join(f"{counts[status]} {status}" for status in sorted(counts))
    wrong = [case for case in cases if case.worst == "error"]
    for case in wrong[:_MOST_SHOWN]:
        yield f"error: {case.name}{f': {case.message}' if case.message else ''}"
    if len(wrong) > _MOST_SHOWN:
        yield f"... and {len(wrong) - _MOST_SHOWN} more, which the tables list."


# --- replay


_SEED = 1234
"""The seed of generated inputs where none is given; its value has no meaning."""


class ReplayCommand(Question):
    """Run one recorded call again, and compare the recorded result, the new one, and one of higher precision.

    DUMP is a dump.json or its folder. RECORD is a call, such as Functional.silu.0; Functional.silu.0.backward is its
    backward alone. The status is 0 if the results are as exact as they can be, 1 if one is wrong, 2 if the
    call cannot be run.
    """

    name = "replay"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("dump", metavar="DUMP", type=arguments.path, help="a dump of level L1 or mix")
        add("record", metavar="RECORD", help="the call, such as Functional.silu.0")
        add("-d", "--device", metavar="DEVICE", default="", help="cpu, cuda:0, npu:0 (the accelerator, else cpu)")
        add("--emit", metavar="FILE", type=arguments.path, help="write a script that runs it without this package")
        add("--minimise", action="store_true", help="make the inputs smaller while the call still fails")
        add("--seed", metavar="N", type=int, default=_SEED, help=f"of generated inputs ({_SEED})")
        arguments.add_max_memory(parser)
        arguments.add_fail_on(parser, "suspect", "suspect")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.api.replaying import replay

        how: dict[str, Any] = {
            "emit": args.emit,
            "minimise": args.minimise,
            "seed": args.seed,
            "max_memory": args.max_memory,
        }
        found = replay(args.dump, args.record, args.device, **how)
        is_failed = found.is_wrong or (args.fail_on == "suspect" and found.is_suspect)
        return Answer(lambda: str(found).split("\n"), found.as_json, args.fail_on != "never" and is_failed)
