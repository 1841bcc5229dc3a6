"""``msprobe monitor watch``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.api.commands.invocation import FINE, FOUND, Invocation
from probe.common.errors import MsprobeException
from probe.common.terminal_text import print_text, printable

if TYPE_CHECKING:
    from probe.monitor.report.live import LiveState

_SHOWN_ALERTS = 8
_HEAD = 10
"""Lines that are no rows of the table."""


class MonitorWatch:
    """Show a running training as it is: steps, the rows farthest from their usual size, and alerts as they come.

    DIR is the output folder of its monitor. Only files are read; the job is not touched. On a terminal the view is live
    and needs rich; elsewhere each alert is printed as a line. Ctrl-C ends it.
    """

    name = "watch"
    aliases = ()

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("path", metavar="DIR", type=arguments.path, help="the output folder of a monitor")
        add("--interval", metavar="SECONDS", type=_seconds, default=1.0, help="between two reads of the files (1)")
        add("--once", action="store_true", help="show the current state, and end; exit status 1 if there is an alert")

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        from probe.monitor.report.live import LiveState

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


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds; allowed: a number above 0.")
    return number


def _follow(state: LiveState, interval: float) -> None:
    from probe.common.report.console import console_of

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
    from probe.common.errors import FileCheckException

    try:
        return state.update()
    except FileCheckException as error:
        # The job may not have written its first step.
        state.follower.notes[:] = [str(error)]
        return []


def _print_once(state: LiveState) -> None:
    from probe.common.report.console import console_of

    console = console_of(sys.stdout)
    if console is not None:
        console.print(_view(state, console.height))
        return
    print_text(_title(state))
    for row in state.most_deviating(_SHOWN_ALERTS):
        print_text(
            f"{row.line} {row.name or '(root module)'} ({row.family}) rank {row.rank}: "
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
            row.name or "(root module)",
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
