"""Values of texts of the command line; a wrong text is an error of usage that names its option."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from probe.api.commands.question import UsageError
from probe.api.rules import MSPROBE, NAMES, OLDER, STANDARDS, VARIABLE

OUTPUT = "./output"
"""Default folder of output files, without ``-o`` or with ``-o`` alone."""


def path(text: str) -> str:
    """A file or folder; an empty text, as an unset variable of a shell gives it, is none."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; give a file or a folder.")
    return text


# --- RUN and BASELINE, in this order in every command


class _Once(argparse.Action):
    """A value that is given by its position or by a flag; two different ones are an error."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest, None)
        if before and before != values:
            first, second = (value[0] if isinstance(value, list) else value for value in (before, values))
            raise argparse.ArgumentError(self, f"{first} and {second} are given; give one of them.")
        setattr(namespace, self.dest, values)


class Several(_Once):
    """Values of a flag that is given several times; the position is the first of them, or is not given."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if option is None:
            super().__call__(parser, namespace, [values], option)
        else:
            setattr(namespace, self.dest, [*(getattr(namespace, self.dest, None) or ()), values])


def add_run(
    parser: argparse.ArgumentParser,
    dest: str,
    what: str,
    *flags: str,
    metavar: str = "RUN",
    action: type[_Once] = _Once,
) -> None:
    """Add the run under test: the first position, or one of `flags`, which are those of msProbe."""
    _add_side(parser, dest, what, metavar, flags, action)


def add_baseline(
    parser: argparse.ArgumentParser,
    dest: str,
    what: str,
    *flags: str,
    metavar: str = "BASELINE",
    action: type[_Once] = _Once,
) -> None:
    """Add the run to compare with: the second position, ``--baseline``, or one of `flags`, those of msProbe."""
    _add_side(parser, dest, what, metavar, (*flags, "--baseline"), action)


def _add_side(
    parser: argparse.ArgumentParser, dest: str, what: str, metavar: str, flags: Sequence[str], action: type[_Once]
) -> None:
    # Without a default, so that a position without a value does not replace the value of the flag.
    default = argparse.SUPPRESS if flags else None
    parser.add_argument(dest, action=action, type=path, nargs="?", metavar=metavar, default=default, help=what)
    if flags:
        more: Any = {"default": []} if action is Several else {}
        text = f"the same as {metavar}"
        parser.add_argument(*flags, dest=dest, action=action, type=path, metavar="PATH", help=text, **more)


def required(value: str | None, name: str) -> str:
    """Return a value that has to be given.

    Raises:
        UsageError: it is not given; `name` says how to give it.
    """
    if value is None:
        raise UsageError(f"the following arguments are required: {name}")
    return value


def count(what: str, least: int = 1, also: str = "and more") -> Callable[[str], int]:
    """A type of whole numbers of at least `least`; `what` and `also` are the words of the error."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}; allowed: {least} {also}.")
        return int(text)

    return parse


def amount(what: str, allowed: str, zero: bool = False) -> Callable[[str], float]:
    """A type of finite numbers above zero, or from `zero` on; `what` and `allowed` are the words of the error."""

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            number = float(text)
            if 0 < number < math.inf or (zero and number == 0):
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}; allowed: {allowed}.")

    return parse


processes = count("a number of processes")
gigabytes = amount("an amount of memory", "a number of GB above 0")


# --- whose rules judge


def add_rules(parser: argparse.ArgumentParser, what: str, allowed: Sequence[str] = NAMES) -> Any:
    """Add ``--rules``; returns the group to which an older flag of the same effect belongs.

    Args:
        what: What they judge, and what is judged by where neither the flag nor the variable is given.
        allowed: The names that mean something for the command.
    """
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--rules",
        choices=[*allowed, OLDER],
        metavar=f"{{{','.join(allowed)}}}",
        help=f"whose rules {what}; the variable {VARIABLE} is its default",
    )
    return group


def add_compat(group: Any) -> None:
    """Add ``--compat``, the older form of ``--rules msprobe``."""
    group.add_argument("--compat", dest="rules", action="store_const", const=MSPROBE, help=argparse.SUPPRESS)


def add_standard(group: Any) -> None:
    """Add ``--standard``, the older form of the two names of msProbe's rules."""
    group.add_argument("--standard", dest="rules", type=_rules_of_standard, help=argparse.SUPPRESS)


def _rules_of_standard(text: str) -> str:
    if text not in STANDARDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no standard; allowed: {', '.join(STANDARDS)}.")
    return STANDARDS[text]


# --- what commands share that run calls again


def add_max_memory(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """Add ``--max-memory``; `condition` is the beginning of its help."""
    parser.add_argument(
        "--max-memory", dest="max_memory", metavar="GB", type=gigabytes,
        help=f"{condition}a call that needs more is not run (a quarter of the machine's memory)",
    )  # fmt: skip


def add_fail_on(parser: argparse.ArgumentParser, lowest: str, default: str) -> None:
    """Add ``--fail-on`` with two verdicts, from the `lowest` one on, and ``never``."""
    parser.add_argument(
        "--fail-on", dest="fail_on", choices=[lowest, "error", "never"], default=default,
        help=f"lowest verdict with exit status 1 ({default})",
    )  # fmt: skip


# --- what commands share that compare


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``-o``, the folder for `what`."""
    parser.add_argument(
        "-o", "--output_path", metavar="DIR", type=path, nargs="?", default=OUTPUT, const=OUTPUT,
        help=f"for the {what} ({OUTPUT})",
    )  # fmt: skip


def add_matching(parser: argparse.ArgumentParser) -> None:
    """Add ``-fm`` and ``-lm``."""
    add = parser.add_argument
    add("-fm", "--fuzzy_match", action="store_true", help="match calls by their order and not by their numbers")
    add("-lm", "--layer_mapping", metavar="FILE", nargs="?", const="", help="names of layers that correspond")


def add_tensor_log(parser: argparse.ArgumentParser) -> None:
    """Add ``-tensor_log``."""
    parser.add_argument(
        "-tensor_log",
        "--is_print_compare_log",
        action="store_true",
        help="a line for each pair of tensors, with its metrics",
    )


def add_where(parser: argparse.ArgumentParser, work: str = "compare") -> None:
    """Add ``--jobs`` and ``--dask``, which exclude each other; `work` is what the processes do."""
    several = parser.add_mutually_exclusive_group()
    several.add_argument("--jobs", metavar="N", type=processes, help=f"how many processes {work}")
    several.add_argument("--dask", metavar="ADDRESS", help="the same on the dask cluster of this scheduler")
