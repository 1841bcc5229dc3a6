"""The ``msprobe`` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from probe._version import __version__
from probe.api.commands.checking.acc_check import AccCheck, MultiAccCheck
from probe.api.commands.checking.api_precision_compare import ApiPrecisionCompare
from probe.api.commands.comparing.compare import Compare
from probe.api.commands.collecting.doctor import Doctor
from probe.api.commands.comparing.graph_visualize import GraphVisualize, older_form
from probe.api.commands.comparing.merge_result import MergeResult
from probe.api.commands.checking.overflow_check import OverflowCheck
from probe.api.commands.collecting.recover import Recover
from probe.api.commands.checking.replay import Replay
from probe.api.commands.collecting.run import Run
from probe.api.commands.collecting.show import Show
from probe.common.errors import MsprobeException
from probe.common.terminal_text import print_text

SAME, DIFFERS, FAILED, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
"""Exit statuses: done or the same; the runs differ; wrong usage or input; Ctrl-C, as shells count it."""


class Command(Protocol):
    """One subcommand; its docstring is its help text."""

    name: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Do the work and return the exit status; raises MsprobeException for what the user can put right."""


COMMANDS: list[Command] = [
    Run(), Show(), Compare(), GraphVisualize(), OverflowCheck(), AccCheck(), MultiAccCheck(), ApiPrecisionCompare(),
    Replay(), MergeResult(), Recover(), Doctor(),
]  # fmt: skip

_ALIASES = {GraphVisualize.name: ["graph"], OverflowCheck.name: ["nan_analyze"]}

_EPILOG = """examples:
  msprobe run train.py --lr 0.1                    collect from a training as it is, two steps of it
  msprobe show ./msprobe_output                    what was collected, and the first NaN or infinity in it
  msprobe show ./msprobe_output --where "Max > 1e4"  the inputs, outputs and gradients that are so large
  msprobe compare -tp ./run_a -gp ./run_b          where two runs diverge, and why
  msprobe graph_visualize -tp ./run_a -gp ./run_b  the same as a page: both runs, call by call
  msprobe overflow_check -i ./dump_path            which record of which rank made the first NaN or infinity
  msprobe acc_check -api_info ./dump.json          run each recorded call again alone: is it the kernel?
  msprobe replay ./dump.json Functional.silu.0     run one of them, and write it as a script that stands alone
  msprobe recover ./dump_path                      make the files of a run that was killed
  msprobe doctor                                   which frameworks and parts are there, and what is missing

msprobe COMMAND --help explains a command. Without a command this text is printed.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line: the flag, its value and what is allowed."""
        print_text(f"{self.prog}: {message.rstrip('.')}. See {self.prog} --help.", sys.stderr)
        self.exit(FAILED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status.

    Args:
        arguments: Those of the command line; ``None``: those of this process, which ends with the command.
    """
    parser = _Parser(
        prog="msprobe",
        description="Precision debugger for deep-learning training.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"msprobe {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        text = command.__doc__ or ""
        aliases = _ALIASES.get(command.name, [])
        sub = commands.add_parser(command.name, aliases=aliases, help=text.split("\n")[0], description=text)
        command.prepare_parser(sub)
        sub.set_defaults(run=command.run)
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] and given[0] in ("-f", "--framework"):
        print_text(f"msprobe: {_of_older_releases(given)}", sys.stderr)
        return FAILED
    args = parser.parse_args(given)
    args.process_ends = arguments is None
    if args.command is None:
        parser.print_help()
        return SAME
    try:
        status: int = args.run(args)
        # A program that was run may have closed it.
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read along has seen enough, as `head` has; nor does Python's own flush at the end concern anyone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (MsprobeException, OSError) as error:
        print_text(f"msprobe {args.command}: {error}", sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"msprobe {args.command}: interrupted.", file=sys.stderr)
        return INTERRUPTED
    return status


def _of_older_releases(given: Sequence[str]) -> str:
    """What to write for ``msprobe -f pytorch COMMAND ...``."""
    if "graph" not in given[2:3]:
        return f"{given[0]} is the form of older releases; leave it out: the dumps say of which framework they are."
    inputs = [value for flag, value in zip(given, given[1:]) if flag in ("-i", "--input_path")]
    return older_form(inputs[0] if inputs else "")


if __name__ == "__main__":
    sys.exit(main())
