"""``msprobe recover``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from probe.common.terminal_text import print_text

if TYPE_CHECKING:
    from probe.common.dump.recovery import Recovered


class Recover:
    """Make dump.json, stack.json and construct.json of runs that died, from the journals they left below DIR.

    A journal is kept, so that nothing is lost if the files are not what you expected; --remove takes it away once its
    files are written.
    """

    name = "recover"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("directory", metavar="DIR", help="a dump_path, or any folder in it")
        parser.add_argument("--remove", action="store_true", help="remove each journal after its files are written")

    def run(self, args: argparse.Namespace) -> int:
        from probe.common.dump.layout import JOURNAL_FILE
        from probe.common.dump.recovery import recover, set_aside

        status, nothing = 0, True
        for found in recover(args.directory, args.remove):
            nothing = False
            if found.problem is not None:
                print_text(f"msprobe recover: {found.folder}: {found.problem}", sys.stderr)
                status = 2
                continue
            left = f"; {found.unwritten} tensors had not been written yet" if found.unwritten else ""
            print_text(f"{found.folder}: {found.records} records in {found.file_name}{_torn(found)}{left}")
        for journal in set_aside(args.directory):
            nothing = False
            print_text(f"{journal}: of an earlier run; to use it, move it to an empty folder as {JOURNAL_FILE}.")
        if nothing:
            print_text(f"{args.directory}: nothing to recover: its runs ended normally, or were recovered before.")
        return status


def _torn(found: Recovered) -> str:
    if found.torn_at is None:
        return ""
    if found.lost:
        size = f"{found.lost} bytes" if found.lost < 1024 else f"{found.lost / 1024:.0f} KiB"
        return f"; the journal is damaged at byte {found.torn_at}; what follows, {size}, is lost"
    return f"; the last record was cut off at byte {found.torn_at} and is lost"
