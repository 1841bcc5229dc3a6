"""``msprobe show``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation, UsageError
from probe.api.commands.question import Line, Question
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.api.commands.collecting.show_text import ShownLine
    from probe.api.commands.collecting.timeline import TimelineRow
    from probe.api.commands.collecting.wanted import Wanted
    from probe.common.dump.reading.dump import Dump
    from probe.common.dump.reading.run import Run

_LIMIT = 200


class Show(Question):
    """Print what was collected: a line for each record, and first of all where the first NaN or infinity is.

    PATH is dump.json, debug.json, a journal of a run that died, the folder of a process, of a step, or a dump_path. Of
    several ranks and steps there is a line for each, unless you say what of them you want to see.
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
            type=_limit,
            help=f"number of lines, 0 for all ({_LIMIT} on a terminal, otherwise all)",
        )

    def answer(
        self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None
    ) -> Shown | Timeline | Updates:
        # Not needed by the other commands, and what it imports takes time.
        from probe.api.commands.collecting.wanted import Wanted
        from probe.common.dump.reading.run import read

        if args.updates:
            for flag in ("items", "where", "tree", "stack", "module", "api", "timeline"):
                if getattr(args, flag):
                    raise UsageError(f"--{flag} cannot be combined with --updates; leave one of them out.")
            return Updates(read(args.path), args.limit)
        wanted = Wanted.of(args.module, args.api, args.where, args.items)
        if not args.timeline:
            return Shown(read(args.path), wanted, args.tree, args.stack, args.limit)
        for flag in ("items", "where", "tree", "stack"):
            if getattr(args, flag):
                raise UsageError(f"--{flag} cannot be combined with --timeline; leave one of them out.")
        from probe.api.commands.collecting.timeline import timeline
        from probe.common.dump.reading.run import Run

        return Timeline(timeline(Run(args.path), wanted), args.limit)


def _limit(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines; allowed: 0 (all) and more.")
    return int(text)


def _limited(lines: Iterable[ShownLine], limit: int | None) -> Iterator[Line]:
    """The lines up to `limit`, 0 for all; ``None``: as many as a terminal shows well."""
    if limit is None:
        limit = _LIMIT if sys.stdout.isatty() else 0
    counted = more = 0
    for line in lines:
        counted += line.counts
        if limit and counted > limit:
            more += line.counts
        else:
            yield Line(line.text, line.style)
    if more:
        yield Line(f"... and {more} more lines; --limit 0 shows all, --where, --module and --api choose")


@dataclass(frozen=True)
class Timeline:
    """The modules over the steps."""

    rows: list[TimelineRow]
    limit: int | None
    found: bool = False

    def lines(self) -> Iterator[Line]:
        from probe.api.commands.collecting.timeline import timeline_lines

        return _limited(timeline_lines(self.rows), self.limit)

    def as_json(self) -> list[Any]:
        return [row.as_json() for row in self.rows[: self.limit or None]]


@dataclass(frozen=True)
class Updates:
    """The steps of optimizers."""

    opened: Dump | Run
    limit: int | None
    found: bool = False

    def _dumps(self) -> list[Dump] | Run:
        from probe.common.dump.reading.dump import Dump

        return [self.opened] if isinstance(self.opened, Dump) else self.opened

    def lines(self) -> Iterator[Line]:
        from probe.api.commands.collecting.update_text import update_lines

        return _limited((line for dump in self._dumps() for line in update_lines(dump)), self.limit)

    def as_json(self) -> list[Any]:
        from probe.api.commands.collecting.update_text import updates_as_json

        return [{"path": dump.path, "updates": updates_as_json(dump.updates)} for dump in self._dumps()]


@dataclass(frozen=True)
class Shown:
    """The content of dumps that is asked for; they are read while it is printed."""

    opened: Dump | Run
    wanted: Wanted
    as_tree: bool
    with_stacks: bool
    limit: int | None
    """The number of lines, 0 for all."""
    found: bool = False

    def lines(self) -> Iterator[Line]:
        return _limited(self._all_lines(), self.limit)

    def _all_lines(self) -> Iterator[ShownLine]:
        from probe.api.commands.collecting import show_text
        from probe.common.dump.reading.dump import Dump

        if isinstance(self.opened, Dump):
            return show_text.dump_lines(self.opened, self.wanted, self.as_tree, self.with_stacks)
        if self.wanted.everything and not (self.as_tree or self.with_stacks):
            return show_text.run_lines(self.opened)
        return show_text.several_dumps_lines(self.opened, self.wanted, self.as_tree, self.with_stacks)

    def as_json(self) -> list[Any]:
        from probe.api.commands.collecting.show_text import dump_as_json
        from probe.common.dump.reading.dump import Dump

        dumps = [self.opened] if isinstance(self.opened, Dump) else self.opened
        return [dump_as_json(dump, self.wanted, self.with_stacks, self.limit or 0) for dump in dumps]
