"""The two runs that a command compares: two paths, two flags, or the newest two below a folder."""

from __future__ import annotations

import argparse

from probe.api.commands import arguments
from probe.api.commands.invocation import UsageError
from probe.common import log


def add_pair(parser: argparse.ArgumentParser) -> None:
    """Add the two paths, ``-tp`` and ``-gp``, and ``--last``."""
    add = parser.add_argument
    add("dumps", metavar="PATH", type=arguments.path, nargs="*", help="the run under test, and the baseline")
    add("-tp", "--target_path", metavar="PATH", type=arguments.path, help="the run under test")
    add("-gp", "--golden_path", metavar="PATH", type=arguments.path, help="the baseline: the run it is compared with")
    add(
        "--last", metavar="DIR", type=arguments.path, nargs="?", const=".",
        help="compare the two newest runs below a folder (.): the newest is the run under test",
    )  # fmt: skip


def set_pair(args: argparse.Namespace) -> None:
    """Set ``target_path`` and ``golden_path`` from the form that was given.

    Raises:
        UsageError: none of the three forms is complete, or two of them are mixed.
        MsprobeException: below the folder of ``--last`` are fewer than two runs.
    """
    flags = [name for name, value in (("-tp", args.target_path), ("-gp", args.golden_path)) if value is not None]
    given = [name for name, is_given in (("paths", args.dumps), ("--last", args.last)) if is_given] + flags[:1]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} were given; name the two runs in one way.")
    if args.last:
        from probe.api.commands.comparing.newest_runs import newest_runs

        args.target_path, args.golden_path = newest_runs(args.last, 2)
        log.info(f"--last: {args.target_path} is compared with {args.golden_path}, the run before it.")
    elif args.dumps:
        if len(args.dumps) != 2:
            given_paths = "1 path was" if len(args.dumps) == 1 else f"{len(args.dumps)} paths were"
            raise UsageError(f"{given_paths} given; give two: the run under test and the baseline.")
        args.target_path, args.golden_path = args.dumps
    elif len(flags) < 2:
        missing = {(): "two runs are", ("-tp",): "-gp/--golden_path is", ("-gp",): "-tp/--target_path is"}[tuple(flags)]
        raise UsageError(f"{missing} missing; give two paths, or -tp and -gp, or --last.")
