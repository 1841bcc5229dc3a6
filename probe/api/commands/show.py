"""``msprobe show``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Line, Question, UsageError
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.api.commands.show_text import ShownLine

_LIMIT = 200
"""Lines on a terminal where no limit is given; a guess."""


class Show(Question):
    """Print what was collected: the first NaN and the first infinity, and a line for each record.

    PATH is dump.json, debug.json, a journal of a run that died, the folder of a process or of a step, or a dump_path.
    Several ranks and steps have a line each, unless a flag selects records.
    """

    name = "show"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("path", metavar="PATH", type=arguments.path, help="a dump, or a folder with one or several")
        add("--module", metavar="GLOB", help="modules by path, class or record, and all inside: 'layers.1', '*Norm'")
        add("--api", metavar="GLOB", help="functions by name: 'softmax', 'Functional.*'; or whole records")
        add("--where", metavar="CONDITION", help="items that satisfy a condition: 'Max > 1e4 or nan'")
        add("--items", action="store_true", help="a line for each input, parameter and output")
        add("--tree", action="store_true", help="as a tree of modules and their calls")
        add("--stack", action="store_true", help="with the call stacks")
        add("--timeline", action="store_true", help="a line for each module and step, and how its output grows")
        add("--updates", action="store_true", help="steps of optimizers: settings, and a line for each parameter")
        add(
            "--limit",
            metavar="N",
            type=arguments.count("a number of lines", 0, "(all) and more"),
            help=f"number of lines, 0 for all ({_LIMIT} on a terminal, otherwise all)",
        )

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        # Not needed by the other commands, and what it imports takes time.
        from probe.api.commands import show_steps, show_text
        from probe.common.dump.reading.selected_items import condition
        from probe.common.dump.reading.several_dumps import Run, read

        _refuse(args, "timeline", ("items", "where", "tree", "stack"))
        _refuse(args, "updates", ("items", "where", "tree", "stack", "module", "api", "timeline"))
        fits = None if args.where is None else condition(args.where)
        wanted = show_text.Wanted(args.module, args.api, fits, args.items or fits is not None, args.items)
        if args.timeline:
            rows = show_steps.timeline(Run(args.path), wanted)
            return Answer(
                lambda: _limited(show_steps.timeline_lines(rows), args.limit),
                lambda: [row.as_json() for row in rows[: args.limit or None]],
            )
        opened = read(args.path)
        dumps = opened if isinstance(opened, Run) else [opened]
        if args.updates:
            return Answer(
                lambda: _limited((line for dump in dumps for line in show_steps.update_lines(dump)), args.limit),
                lambda: [{"path": each.path, "updates": show_steps.updates_as_json(each.updates)} for each in dumps],
            )
        return Answer(
            lambda: _limited(show_text.lines(opened, wanted, args.tree, args.stack), args.limit),
            lambda: [show_text.dump_as_json(dump, wanted, args.stack, args.limit or 0) for dump in dumps],
        )


def _refuse(args: argparse.Namespace, option: str, others: Iterable[str]) -> None:
    """Refuse options that have no meaning with `option`."""
    for other in others if getattr(args, option) else ():
        if getattr(args, other):
            raise UsageError(f"--{other} cannot be combined with --{option}; leave one of them out.")


def _limited(lines: Iterable[ShownLine], limit: int | None) -> Iterator[Line]:
    """The lines up to `limit`, 0 for all; ``None``: as many as a terminal shows well."""
    if limit is None:
        limit = _LIMIT if sys.stdout.isatty() else 0
    counted = more = 0
    for text, style, counts in lines:
        counted += counts
        if limit and counted > limit:
            more += counts
        else:
            yield text, style
    if more:
        yield f"... and {more} more lines; --limit 0 shows all, --where, --module and --api choose"
