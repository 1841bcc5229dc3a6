"""``msprobe api_precision_compare``."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Answer, Question
from probe.api.questions.rules import rules_for, writer
from probe.common.errors import FileCheckException
from probe.common.progress import ProgressCallback

_MOST_SHOWN = 20


class ApiPrecisionCompare(Question):
    """Judge the errors of an NPU by those of a GPU, from the details that acc_check wrote on both.

    The status is 0 if all passes, 1 if something does not, 2 if a file is no table of details or no case can be judged.
    """

    name = "api_precision_compare"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        table: dict[str, Any] = {"metavar": "FILE", "type": arguments.path, "required": True}
        add("-npu", "--npu_csv_path", help="accuracy_checking_details_<time>.csv of the NPU", **table)
        add("-gpu", "--gpu_csv_path", help="the same of the GPU", **table)
        add("-o", "--out_path", metavar="DIR", type=arguments.path, default="./", help="for the two tables (./)")
        arguments.add_standard(arguments.add_rules(parser, "judge (probe)"))
        add("--headers", choices=["english", "msprobe"], default="english", help="of the tables (english)")
        arguments.add_fail_on(parser, "warning", "error")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        for path in (args.npu_csv_path, args.gpu_csv_path):
            if not os.path.isfile(path):
                needed = "give a table accuracy_checking_details_<time>.csv"
                raise FileCheckException(f"{path}: there is no such file; {needed}.")
        compare_devices = writer("devices", self.name)
        method = rules_for("cases", args.rules)
        found = compare_devices(args.npu_csv_path, args.gpu_csv_path, args.out_path, method, args.headers)
        if not found.is_any_judged:
            invocation.problem(f"no case of {args.npu_csv_path} and {args.gpu_csv_path} can be judged.")
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
