"""``msprobe api_precision_compare``."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.terminal_text import print_text

if TYPE_CHECKING:
    from probe.precheck.tables.results import ResultRow

_PASSED, _REFUSED, _FAILED = 0, 1, 3
_MOST_SHOWN = 20


class ApiPrecisionCompare:
    """Judge the errors of an NPU by those of a GPU, from the details that acc_check wrote on both.

    Exit status: 0 when all passes, 3 when something does not, 1 when a file is no table of details, and 2 when the
    command line is wrong.
    """

    name = "api_precision_compare"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
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
            help="from which verdict on the exit status is 3 (error)",
        )  # fmt: skip

    def run(self, args: argparse.Namespace) -> int:
        # Up to here mistakes are those of the command line, which has a status of its own.
        for path in (args.npu_csv_path, args.gpu_csv_path):
            if not os.path.isfile(path):
                raise FileCheckException(f"{path}: there is no such file; give a table of details.")
        try:
            return _compare(args)
        except (MsprobeException, OSError) as error:
            print_text(f"msprobe {self.name}: {error}", sys.stderr)
            return _REFUSED


def _compare(args: argparse.Namespace) -> int:
    from probe.precheck.standards.stage2 import compare
    from probe.precheck.tables.comparisons import write
    from probe.precheck.tables.details import read_details
    from probe.precheck.tables.layout import LAYOUTS

    npu, gpu = read_details(args.npu_csv_path), read_details(args.gpu_csv_path)
    rows, results = compare(npu, gpu, args.standard)
    written = write(args.out_path, rows, results, LAYOUTS[args.headers])
    for line in [*_lines(results), *written]:
        print_text(line)
    failing = {"warning": {"warning", "error"}, "error": {"error"}, "never": set()}[args.fail_on]
    return _FAILED if failing.intersection(row.status for row in rows) else _PASSED


def _lines(results: Sequence[ResultRow]) -> list[str]:
    """How many cases are what, and those that are wrong."""
    from probe.precheck.standards.documented import worst_of

    statuses = [worst_of([status for status in (row.forward, row.backward) if status]) for row in results]
    counts = Counter(statuses)
    lines = [f"{len(results)} cases: " + ", ".join(f"{counts[status]} {status}" for status in sorted(counts))]
    wrong = [row for row, status in zip(results, statuses) if status == "error"]
    lines += [f"error: {row.name}{f': {row.message}' if row.message else ''}" for row in wrong[:_MOST_SHOWN]]
    if len(wrong) > _MOST_SHOWN:
        lines.append(f"... and {len(wrong) - _MOST_SHOWN} more, which the tables list.")
    return lines
