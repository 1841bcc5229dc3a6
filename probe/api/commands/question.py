"""The base of the commands that answer something: ``--json``, ``-q``, progress, and the status of the answer."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TextIO, Union

from probe.api.commands.invocation import Invocation, UsageError
from probe.common import log
from probe.common.progress import ProgressCallback


class Command(Protocol):
    """One subcommand; its docstring is its help text."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> Sequence[str]: ...

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        """Do the work and return the exit status; raises MsprobeException for what the user can put right."""


Line = Union[str, tuple[str, str]]
"""A line of an answer: a text, or a text and a style of rich for terminals."""


@dataclass(frozen=True)
class Answer:
    """The answer of a command, for people and for machines; one of both is asked for, and made then.

    Args:
        lines: Makes the text, perhaps while it is printed.
        as_json: Makes the keys of the command; a list, of an object for each dump or pair, where programs read one.
        found: True if something was found, for status 1. A function is called when the answer has been printed.
    """

    lines: Callable[[], Iterable[Line]]
    as_json: Callable[[], dict[str, Any] | list[Any]]
    found: bool | Callable[[], bool] = False


class Question(ABC):
    """A command that answers something; its docstring is its help text."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        self.add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")
        parser.add_argument("-q", "--quiet", action="store_true", help="no notes and no progress")

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command."""

    @abstractmethod
    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        """Do the work.

        Args:
            args: The arguments.
            invocation: Takes the problems that do not end the work.
            watch: A callback for how far the work is; ``None`` if nobody would see it.

        Raises:
            MsprobeException: there is no answer.
        """

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        # Not needed for help, and what it imports takes time.
        from probe.common.report.terminal import Progress

        with log.quiet() if args.quiet else contextlib.nullcontext():
            with _prints_beside_answer(args.json), Progress(not (args.json or args.quiet)) as progress:
                answer = self.answer(args, invocation, progress.watch)
                content = answer.as_json() if args.json else {}
            if not args.json:
                print_lines(answer.lines(), sys.stdout)
        status = invocation.status(answer.found() if callable(answer.found) else answer.found)
        if args.json:
            invocation.print_json(status, content)
        return status


class CommandGroup:
    """A command with commands of its own, ``msprobe monitor report``; its docstring is its help text."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    commands: ClassVar[tuple[Command, ...]]

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.set_defaults(subcommand=None)
        subparsers = parser.add_subparsers(metavar="COMMAND")
        for command in self.commands:
            text = command.__doc__ or ""
            sub = subparsers.add_parser(command.name, help=text.split("\n")[0], description=text)
            command.prepare_parser(sub)
            sub.set_defaults(subcommand=command)

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        names = ", ".join(command.name for command in self.commands)
        if args.subcommand is None:
            raise UsageError(f"a command is missing after {self.name}; allowed: {names}")
        invocation.command = f"{self.name} {args.subcommand.name}"
        return int(args.subcommand.run(args, invocation))


def print_lines(lines: Iterable[Line], stream: TextIO) -> None:
    """Print lines, with colours on a terminal that rich can serve."""
    from probe.common.report.terminal import console_of
    from probe.common.terminal_text import print_text, printable

    console = console_of(stream)
    for line in lines:
        text, style = (line, "") if isinstance(line, str) else line
        if console is None or not style:
            print_text(text, stream)
        else:
            console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _prints_beside_answer(wanted: bool) -> Iterator[None]:
    """Send to standard error what others print while the work is done: a metric of the user's, a framework.

    Processes that are started, and compiled code, print to the file descriptor.
    """
    if not wanted:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr), _descriptor_redirected():
        yield


@contextlib.contextmanager
def _descriptor_redirected() -> Iterator[None]:
    try:
        output, errors = sys.__stdout__.fileno(), sys.__stderr__.fileno()  # type: ignore[union-attr]
        kept = os.dup(output)
    except (AttributeError, OSError, ValueError):
        # One of them is closed, or is no file.
        yield
        return
    os.dup2(errors, output)
    try:
        yield
    finally:
        sys.__stdout__.flush()  # type: ignore[union-attr]
        os.dup2(kept, output)
        os.close(kept)
