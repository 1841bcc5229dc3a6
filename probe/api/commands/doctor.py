"""``msprobe doctor``."""

from __future__ import annotations

import argparse

from probe.common.terminal_text import print_text


class Doctor:
    """Print what is there: Python, frameworks, compiled parts, optional packages; and how to get what is missing.

    Each framework is imported in a process of its own, so that one that is broken neither ends this command nor hides
    the others. Nothing else is read, and nothing is fetched.
    """

    name = "doctor"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--no-import", action="store_true", help="do not try to import the frameworks, which takes seconds"
        )

    def run(self, args: argparse.Namespace) -> int:
        # Not needed by the other commands, and what it imports takes time.
        from probe.api.commands.installation import lines

        for line in lines(not args.no_import):
            print_text(line)
        return 0
