"""``msprobe api_precision_compare``."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Line, Question
from probe.common.errors import FileCheckException
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.precheck.tables.results import ResultRow

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
        add(
            "--standard", choices=["documented", "26.2"], default="documented",
            help="the methods of the documentation (default), or what msProbe 26.2.0 does",
        )  # fmt: skip
        add("--headers", choices=["english", "msprobe"], default="english", help="of the tables (english)")
        add(
            "--fail-on", choices=["warning", "error", "never"], default="error",
            help="from which verdict on the exit status is 1 (error)",
        )  # fmt: skip

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Judgement:
        from probe.precheck.standards.stage2 import compare
        from probe.precheck.tables.comparisons import write
        from probe.precheck.tables.details import SKIP, read_details
        from probe.precheck.tables.layout import LAYOUTS

        for path in (args.npu_csv_path, args.gpu_csv_path):
            if not os.path.isfile(path):
                raise FileCheckException(f"{path}: there is no such file; give a table of details.")
        npu, gpu = read_details(args.npu_csv_path), read_details(args.gpu_csv_path)
        rows, results = compare(npu, gpu, args.standard)
        written = write(args.out_path, rows, results, LAYOUTS[args.headers])
        if all(row.status == SKIP for row in rows):
            invocation.problem(f"not a case of {args.npu_csv_path} and {args.gpu_csv_path} can be judged.")
        failing = {"warning": {"warning", "error"}, "error": {"error"}, "never": set()}[args.fail_on]
        return Judgement(results, written, bool(failing.intersection(row.status for row in rows)))


@dataclass(frozen=True)
class Judgement:
    """How many cases are what, those that are wrong, and the tables."""

    results: Sequence[ResultRow]
    files: Sequence[str]
    found: bool

    def lines(self) -> Iterator[Line]:
        statuses = self._statuses()
        counts = Counter(statuses)
        yield Line(f"{len(statuses)} cases: " + ", ".join(f"{counts[status]} {status}" for status in sorted(counts)))
        wrong = [row for row, status in zip(self.results, statuses) if status == "error"]
        for row in wrong[:_MOST_SHOWN]:
            yield Line(f"error: {row.name}{f': {row.message}' if row.message else ''}")
        if len(wrong) > _MOST_SHOWN:
            yield Line(f"... and {len(wrong) - _MOST_SHOWN} more, which the tables list.")
        yield from map(Line, self.files)

    def as_json(self) -> dict[str, Any]:
        cases = [{**vars(row), "worst": status} for row, status in zip(self.results, self._statuses())]
        return {"counts": dict(Counter(self._statuses())), "cases": cases, "files": list(self.files)}

    def _statuses(self) -> list[str]:
        from probe.precheck.standards.documented import worst_of

        return [worst_of([status for status in (row.forward, row.backward) if status]) for row in self.results]
