"""One call of a command: the exit statuses, and the one place where errors are caught and reported.

As in diff, grep and ruff, 0 is nothing found, 1 is something found, and 2 is trouble. Commands raise what the user can
put right, or report it as a problem and go on; they neither print errors nor choose a status for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from probe.common.errors import MsprobeException, failure_text
from probe.common.report.json_values import to_json
from probe.common.terminal_text import print_text

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
        print(json.dumps(to_json(content), allow_nan=False, indent=1))

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
