"""``msprobe doctor``."""

from __future__ import annotations

import argparse

from probe.common.terminal_text import print_text


class Doctor:
    """Print what is there and whether it works: Python, frameworks, compiled parts, packages; how to get the rest.

    With each framework that is there a training step is collected and read back, in a process of its own, so that one
    that is broken neither ends this command nor hides the others. Nothing is fetched, and nothing stays. The exit
    status is 1 if a framework that is there does not work.
    """

    name = "doctor"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--no-import", action="store_true", help="do not try the frameworks, which takes seconds")

    def run(self, args: argparse.Namespace) -> int:
        # Not needed by the other commands, and what it imports takes time.
        from probe.api.commands.collecting.installation import Installation

        installation = Installation(not args.no_import)
        for line in installation.lines():
            print_text(line)
        return int(installation.is_broken)
