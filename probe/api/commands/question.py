"""The base of the commands: exit statuses, errors, ``--json``, ``-q``, progress, and the status of an answer."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TextIO, Union

from probe.common import log
from probe.common.errors import MsprobeException, failure_text
from probe.common.given_paths import as_given, values_as_given
from probe.common.harmless_text import print_text
from probe.common.progress import ProgressCallback
from probe.common.report.json_values import to_json

FINE, FOUND, TROUBLE = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 130, 141
"""Ctrl-C, and a reader such as ``head`` that has seen enough: both as shells count them."""
JSON_VERSION = 1
"""The version of the object that ``--json`` prints; it grows when a key changes its meaning or is removed."""


class UsageError(MsprobeException):
    """The command line is wrong; the message names the flag, its value and what is allowed."""


class Invocation:
    """One call of a command.

    Args:
        command: its name; empty if none is given.
        as_json: standard output is for a machine: it gets one JSON value, of trouble too.
    """

    def __init__(self, command: str = "", as_json: bool = False) -> None:
        self.command = command
        self.as_json = as_json
        self.problems: list[str] = []
        self._is_answered = False

    @property
    def title(self) -> str:
        """``msprobe compare``."""
        return f"msprobe {self.command}".rstrip()

    def problem(self, text: str) -> None:
        """Report trouble that does not end the command, such as one dump of several that cannot be read."""
        text = as_given(text)
        self.problems.append(text)
        # Without a standard error, or with one that nobody reads, the status still tells.
        if sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):
                print_text(f"{self.title}: {text}", sys.stderr)

    def status(self, found: bool) -> int:
        """The exit status of a command that came to its end."""
        return TROUBLE if self.problems else FOUND if found else FINE

    def print_json(self, status: int, content: Mapping[str, Any] | list[Any]) -> None:
        """Print what ``--json`` asks for: the outer keys of all commands and those of this one, or a list as it is."""
        self._is_answered = True
        if isinstance(content, Mapping):
            outer = {"version": JSON_VERSION, "command": self.command, "status": status, "errors": self.problems}
            content = {**outer, **content}
        print(json.dumps(values_as_given(to_json(content)), allow_nan=False, indent=1))

    def run(self, work: Callable[[], int]) -> int:
        """Do `work`, which returns a status; gives the exit status, also of whatever `work` raises."""
        try:
            status = work()
            _flush()
            return status
        except BrokenPipeError:
            _discard_output()
            return PIPE_CLOSED
        except UsageError as error:
            text = str(error).rstrip(".")
            return self._ended(f"{text}{'' if text.endswith('?') else '.'} See {self.title} --help.", TROUBLE)
        except (MsprobeException, OSError) as error:
            return self._ended(str(error), TROUBLE)
        except KeyboardInterrupt:
            return self._ended("interrupted.", INTERRUPTED)
        except Exception as error:
            return self._ended(defect(error), TROUBLE)

    def _ended(self, text: str, status: int) -> int:
        self.problem(text)
        try:
            if self.as_json and not self._is_answered:
                self.print_json(status, {})
            _flush()
        except OSError:
            # Such as a full disk, which is reported already.
            _discard_output()
        return status


def defect(error: Exception) -> str:
    """Show where an error of our own comes from; gives the sentence on it."""
    traceback.print_exception(type(error), error, error.__traceback__)
    return f"an error of msprobe itself, please report it: {failure_text(error)}"


def _flush() -> None:
    # A program that was run may have closed it.
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _discard_output() -> None:
    """Let Python's own flush at the end of the process fail no more."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# --- question


class Command(Protocol):
    """One subcommand; its docstring is its help text."""

    @property
    def name(self) -> str: ...

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace, invocation: Invocation) -> int:
        """Do the work and return the exit status; raises MsprobeException for what the user can put right."""


Line = Union[str, tuple[str, str]]
"""A line of an answer: a text, or a text and a style of rich for terminals."""


class Check(NamedTuple):
    """A part of an answer that a CI shows as one test.

    Args:
        group: The name of the class that the test belongs to: the step.
        name: The name of the test: the rank.
        problem: ``failure``, ``error`` or ``skipped``; empty if nothing is wrong.
        lines: The answer; the first line is the title.
        details: Lines that are shown if somebody asks for them.
        path: The user's file in which the problem begins; empty if that is not known.
        line: The number of the line in it.
    """

    group: str
    name: str
    problem: str
    lines: Sequence[str]
    details: Sequence[str] = ()
    path: str = ""
    line: int = 0


class Answer(NamedTuple):
    """The answer of a command, for people and for machines; one of both is asked for, and made then.

    Args:
        lines: Makes the text, perhaps while it is printed.
        as_json: Makes the keys of the command; a list, of an object for each dump or pair, where programs read one.
        found: True if something was found, for status 1. A function is called when the answer has been printed.
        checks: Makes the parts that a CI shows as tests of their own; ``None``: the answer is one test.
    """

    lines: Callable[[], Iterable[Line]]
    as_json: Callable[[], dict[str, Any] | list[Any]]
    found: bool | Callable[[], bool] = False
    checks: Callable[[], list[Check]] | None = None


class Question(ABC):
    """A command that answers something; its docstring is its help text."""

    name: ClassVar[str]

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
        from probe.common.progress import Progress

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
    from probe.common.harmless_text import print_text, printable
    from probe.common.progress import console_of

    console = console_of(stream)
    for line in lines:
        text, style = (line, "") if isinstance(line, str) else line
        text = as_given(text)
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
