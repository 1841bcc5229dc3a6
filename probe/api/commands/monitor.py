"""``msprobe monitor``: ``report``, ``watch`` and ``dump``; ``msprobe trend``; and msProbe's sorting of anomalies."""

from __future__ import annotations

import argparse
import ast
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from probe.api.commands import arguments
from probe.api.commands.arguments import count
from probe.api.commands.question import FINE, FOUND, Answer, CommandGroup, Invocation, Line, Question, UsageError
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.harmless_text import print_text, printable
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.monitor.live import LiveState
    from probe.monitor.trend.page import TrendPage

_SHOWN_ALERTS = 8
"""Rows that deviate most, as the screen lists them; a guess."""
_HEAD = 10
"""Lines that are no rows of the table."""


class MonitorReport(Question):
    """Name the row that began, in the files of a training monitor: the first abnormal value in execution order.

    RUN is the output folder of a monitor, or the folder of one rank; all ranks are read. With a BASELINE the first
    value by which the runs differ is named, too. The status is 0 if nothing is abnormal, 1 if something is, 2 if the
    files cannot be read.
    """

    name = "report"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_run(parser, "path", "the output folder of a monitor, or the folder of one rank")
        arguments.add_baseline(parser, "baseline", "the same of a second run")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.monitor import two_runs
        from probe.monitor.judging import judge_run
        from probe.monitor.monitor_run import read_monitor
        from probe.monitor.two_runs import compare_runs

        paths = [arguments.required(args.path, "RUN"), *([args.baseline] if args.baseline else [])]
        runs = [read_monitor(path) for path in paths]
        first, *others = [judge_run(run, watch) for run in runs]
        if not others:
            return Answer(lambda: two_runs.run_lines(first), first.as_json, bool(first.findings))
        (other,), difference = others, compare_runs(*runs)
        return Answer(
            lambda: two_runs.two_runs_lines(first, other, difference),
            lambda: {**first.as_json(), "other": other.as_json(), **difference.as_json()},
            bool(difference.is_found or first.findings or other.findings),
        )


class MonitorWatch:
    """Show a running training as it is: steps, the rows farthest from their usual size, and alerts as they come.

    DIR is the output folder of its monitor. Only files are read; the job is not touched. On a terminal the view is live
    and needs rich; elsewhere each alert is printed as a line. Ctrl-C ends it.
    """

    name = "watch"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("path", metavar="DIR", type=arguments.path, help="the output folder of a monitor")
        seconds = arguments.amount("a number of seconds", "a number above 0")
        add("--interval", metavar="SECONDS", type=seconds, default=1.0, help="between two reads of the files (1)")
        add("--once", action="store_true", help="show the current state, and end; exit status 1 if there is an alert")

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        from probe.monitor.live import LiveState

        if not os.path.isdir(args.path):
            raise MsprobeException(f"{args.path} is not a folder; give the output folder of a monitor.")
        state = LiveState(args.path)
        if args.once:
            state.update(is_last=True)
            _print_once(state)
            return FOUND if state.findings else FINE
        try:
            _follow(state, args.interval)
        except KeyboardInterrupt:
            # The usual end.
            return FOUND if state.findings else FINE
        return FINE


def _follow(state: LiveState, interval: float) -> None:
    from probe.common.progress import console_of

    console = console_of(sys.stdout)
    if console is None:
        while True:
            for found in _updated(state):
                print_text(found.text())
                sys.stdout.flush()
            time.sleep(interval)
    from rich.live import Live

    with Live(_view(state, console.height), console=console, auto_refresh=False, screen=True) as live:
        while True:
            _updated(state)
            live.update(_view(state, console.height), refresh=True)
            time.sleep(interval)


def _updated(state: LiveState) -> list[Any]:
    try:
        return state.update()
    except FileCheckException as error:
        # The job may not have written its first step.
        state.follower.notes[:] = [str(error)]
        return []


def _print_once(state: LiveState) -> None:
    from probe.common.progress import console_of
    from probe.monitor.alerts.rows import shown_name

    console = console_of(sys.stdout)
    if console is not None:
        console.print(_view(state, console.height))
        return
    print_text(_title(state))
    for row in state.most_deviating(_SHOWN_ALERTS):
        print_text(
            f"{row.line} {shown_name(row.name)} ({row.family}) rank {row.rank}: "
            f"norm {row.size:.3g}, usually {row.usual:.3g}"
        )
    for found in state.findings:
        print_text(found.text())


def _title(state: LiveState) -> str:
    if not state.steps:
        return f"{state.follower.path}: waiting for the first step"
    steps = sorted(set(state.steps.values()))
    where = f"step {steps[-1]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    ranks = len(state.steps)
    alerts = len(state.findings)
    return (
        f"{state.follower.path}: {where}, {ranks} rank{'s' * (ranks > 1)}, {len(state.sizes)} rows, "
        f"{alerts or 'no'} alert{'s' * (alerts != 1)}"
    )


def _view(state: LiveState, height: int) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from probe.monitor.alerts.rows import shown_name

    table = Table(expand=True, box=None, header_style="dim")
    for column, justify in (
        ("row", "left"),
        ("family", "left"),
        ("rank", "right"),
        ("norm", "right"),
        ("usually", "right"),
        ("last steps", "left"),
    ):
        table.add_column(column, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for row in state.most_deviating(max(5, height - _SHOWN_ALERTS - _HEAD)):
        style = "red" if row.deviation > 1 else "yellow" if row.deviation > 0.5 else ""
        cells = (
            shown_name(row.name),
            row.family,
            str(row.rank),
            f"{row.size:.3g}",
            f"{row.usual:.3g}",
            row.line,
        )
        table.add_row(*(Text(printable(cell)) for cell in cells), style=style)
    alerts = [Text(printable(each.text()), style="bold red") for each in list(state.findings)[-_SHOWN_ALERTS:]]
    notes = [Text(printable(note), style="dim") for note in state.follower.notes[-2:]]
    none = [] if alerts else [Text("no alert", style="green")]
    return Group(Text(printable(_title(state)), style="bold"), Text(), table, Text(), *(alerts or none), *notes)


class MonitorDump(Question):
    """Tell a running job that is monitored to dump its next step.

    DIR is the output folder of its monitor. The monitor looks once a second, between two steps, and writes the dump to
    dump_step<N> in the folder of each rank.
    """

    name = "dump"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("path", metavar="DIR", type=arguments.path, help="the output folder of a monitor")
        add("--rank", metavar="N", type=arguments.count("a rank", 0), action="append", default=[],
            help="only this rank; may be repeated")  # fmt: skip

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.monitor.schedule import request_dump

        files = request_dump(args.path, tuple(args.rank))
        return Answer(lambda: [f"requested: {each}" for each in files], lambda: {"files": files})


class Monitor(CommandGroup):
    """Read the files of a training monitor: the row that changed first, a live view, a page (msprobe trend)."""

    name = "monitor"
    commands = (MonitorReport(), MonitorWatch(), MonitorDump())


# --- trend


_MOST_RUNS = 8
"""Runs that one report takes: a guess, about as many as a page has colours that are told apart."""


class Trend(Question):
    """Show the files of a training monitor as one HTML page: a heat map over step, rank and module, lines, and alerts.

    DIR is the output folder of a monitor. Several folders are runs next to each other; the first value by which the
    first two differ is marked.
    """

    name = "trend"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "paths", metavar="DIR", nargs="+", type=arguments.path, help=f"folders of monitors, up to {_MOST_RUNS} runs"
        )
        add("--baseline", metavar="DIR", type=arguments.path, help="the second run, if it is not the second DIR")
        arguments.add_output(parser, "page")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.common.errors import MsprobeException
        from probe.monitor.trend.page import write_trend

        paths = args.paths if args.baseline is None else [args.paths[0], args.baseline, *args.paths[1:]]
        if len(paths) > _MOST_RUNS:
            raise MsprobeException(f"{len(paths)} folders are given; allowed: up to {_MOST_RUNS} runs.")
        page = write_trend(paths, args.output_path, watch)
        content: dict[str, Any] = {"file": page.path, "runs": [each.as_json() for each in page.judged]}
        if page.difference is not None:
            content.update(page.difference.as_json())
        return Answer(lambda: _lines(page), lambda: content)


def _lines(page: TrendPage) -> Iterator[Line]:
    yield from ((note, "dim") for note in page.notes)
    for each in page.judged:
        yield f"{each.run.path}: {each.headline}"
    if page.difference is not None:
        first = page.difference.first
        yield "first difference: " + ("none" if first is None else first.text())
        if page.difference.turn is not None:
            yield f"first turn: {page.difference.turn.text()}"
    yield page.path


# --- anomaly processor


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
        from probe.api.rules import writer

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
