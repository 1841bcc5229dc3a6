"""``msprobe show``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from probe.api.commands import arguments

if TYPE_CHECKING:
    from probe.api.commands.collecting.show_text import Line, Wanted
    from probe.common.dump.reading.dump import Dump
    from probe.common.dump.reading.run import Run

_LIMIT = 200


class Show:
    """Print what was collected: a line for each record, and first of all where the first NaN or infinity is.

    PATH is dump.json, debug.json, a journal of a run that died, the folder of a process, of a step, or a dump_path. Of
    several ranks and steps there is a line for each, unless you say what of them you want to see.
    """

    name = "show"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("path", metavar="PATH", type=arguments.path, help="a dump, or a folder with one or several")
        add("--module", metavar="GLOB", help="modules by path, class or record, and all inside: 'layers.1', '*Norm'")
        add("--api", metavar="GLOB", help="functions by name: 'softmax', 'Functional.*'; or whole records")
        add("--where", metavar="CONDITION", help="items for which this holds: 'Max > 1e4 or nan'")
        add("--items", action="store_true", help="a line for each input, parameter and output")
        add("--tree", action="store_true", help="as a tree: which call ran inside which module")
        add("--stack", action="store_true", help="with the call stacks")
        add("--json", action="store_true", help="print JSON: a list with an object for each dump")
        add(
            "--limit",
            metavar="N",
            type=_limit,
            help=f"how many lines, 0 for all ({_LIMIT} on a terminal, otherwise all)",
        )

    def run(self, args: argparse.Namespace) -> int:
        # Not needed by the other commands, and what it imports takes time.
        from probe.api.commands.collecting.show_text import Wanted
        from probe.common.dump.reading.dump import Dump
        from probe.common.dump.reading.run import read

        wanted = Wanted.of(args.module, args.api, args.where, args.items)
        opened = read(args.path)
        if args.json:
            _print_json([opened] if isinstance(opened, Dump) else opened, wanted, args)
            return 0
        limit = args.limit
        if limit is None:
            limit = _LIMIT if sys.stdout.isatty() else 0
        _print(_lines(opened, wanted, args), limit)
        return 0


def _limit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines; allowed: 0 (all) and more.")
    return int(text)


def _lines(opened: Dump | Run, wanted: Wanted, args: argparse.Namespace) -> Iterator[Line]:
    from probe.api.commands.collecting import show_text
    from probe.common.dump.reading.dump import Dump

    if isinstance(opened, Dump):
        yield from show_text.dump_lines(opened, wanted, args.tree, args.stack)
    elif wanted.everything and not (args.tree or args.stack):
        yield from show_text.run_lines(opened)
    else:
        yield from show_text.several_dumps_lines(opened, wanted, args.tree, args.stack)


def _print(lines: Iterable[Line], limit: int) -> None:
    from probe.common.report.console import console_of
    from probe.common.terminal_text import print_text, printable

    console = console_of(sys.stdout)
    counted = more = 0
    for line in lines:
        counted += line.counts
        if limit and counted > limit:
            more += line.counts
        elif console is None or not line.style:
            print_text(line.text)
        else:
            console.print(printable(line.text), style=line.style, markup=False, highlight=False, soft_wrap=True)
    if more:
        print_text(f"... and {more} more lines; --limit 0 shows all, --where, --module and --api choose")


def _print_json(dumps: Iterable[Dump], wanted: Wanted, args: argparse.Namespace) -> None:
    from probe.api.commands.collecting.show_text import dump_as_json

    found = [dump_as_json(dump, wanted, args.stack, args.limit or 0) for dump in dumps]
    print(json.dumps(found, allow_nan=False))
