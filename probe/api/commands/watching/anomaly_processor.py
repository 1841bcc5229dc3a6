"""``python -m msprobe.core.monitor.anomaly_processor``."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from typing import NoReturn

from probe.api.commands.arguments import count
from probe.api.commands.invocation import FINE, Invocation, UsageError
from probe.common.terminal_text import print_text


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the first anomalies of all ranks; returns the exit status.

    Args:
        arguments: Those of the command line; ``None``: those of this process.
    """
    invocation = Invocation("anomaly_processor")

    def work() -> int:
        from probe.api.questions.rules import writer

        args = _parser().parse_args(arguments)
        analyse = writer("anomalies", "anomaly.json")
        print_text(analyse(args.data_path_dir, args.out_path, args.top_k, args.step_list))
        return FINE

    return invocation.run(work)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m msprobe.core.monitor.anomaly_processor",
        description="Write anomaly_analyse.json: the first anomalies of all ranks, in the order of step and call.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-d", "--data_path", dest="data_path_dir", metavar="DIR", required=True, help="anomaly_detected of a monitor")
    add("-o", "--out_path", metavar="DIR", help="folder for the file (the same folder)")
    number = count("a number of anomalies")
    add("-k", "--topk", dest="top_k", metavar="N", type=number, default=8, help="how many anomalies (8)")
    add("-s", "--step", dest="step_list", metavar="STEPS", type=_steps, help='steps to examine: "[3,4]" or 3,4')
    return parser


def _steps(text: str) -> list[int]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = None
    steps = [value] if isinstance(value, int) else value
    if not isinstance(steps, (list, tuple)) or not all(type(each) is int and each >= 0 for each in steps):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of steps; allowed: [3,4], 3,4 or 3.")
    return list(steps)
