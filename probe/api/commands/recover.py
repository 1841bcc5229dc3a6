"""``msprobe recover``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question
from probe.common.dump.layout import JOURNAL_FILE
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.common.dump.recovery import RecoveredFolder


class Recover(Question):
    """Make dump.json, stack.json and construct.json of runs that died, from the journals they left below DIR.

    A journal is kept, so that nothing is lost if the files are not what you expected; --remove takes it away once its
    files are written.
    """

    name = "recover"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("directory", metavar="DIR", type=arguments.path, help="a dump_path, or any folder in it")
        parser.add_argument("--remove", action="store_true", help="remove each journal after its files are written")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        from probe.common.dump.recovery import recover, set_aside

        def recovered() -> Iterator[RecoveredFolder]:
            # Each is told of as soon as its files are made.
            for each in recover(args.directory, args.remove):
                if each.problem is not None:
                    invocation.problem(each.problem)
                yield each

        def lines() -> Iterator[str]:
            nothing = True
            for each in recovered():
                nothing = False
                if each.problem is None:
                    left = f"; {each.unwritten} tensors had not been written yet" if each.unwritten else ""
                    yield f"{each.folder}: {each.records} records in {each.file_name}{_torn(each)}{left}"
            for journal in set_aside(args.directory):
                nothing = False
                yield f"{journal} belongs to an earlier run; to use it, move it to an empty folder as {JOURNAL_FILE}."
            if nothing:
                yield f"{args.directory}: nothing to recover: its runs ended normally, or were recovered before."

        return Answer(
            lines, lambda: {"recovered": list(map(asdict, recovered())), "set_aside": set_aside(args.directory)}
        )


def _torn(found: RecoveredFolder) -> str:
    if found.torn_at is None:
        return ""
    if found.lost:
        size = f"{found.lost} bytes" if found.lost < 1024 else f"{found.lost / 1024:.0f} KiB"
        return f"; the journal is damaged at byte {found.torn_at}, and the {size} behind it are lost"
    return f"; the last record was cut off at byte {found.torn_at} and is lost"
