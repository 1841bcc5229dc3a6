"""``msprobe doctor``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Line, Question
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.api.commands.collecting.installation import Installation


class Doctor(Question):
    """Print what is there and whether it works: Python, frameworks, compiled parts, packages; how to get the rest.

    With each framework that is there a training step is collected and read back, in a process of its own, so that one
    that is broken neither ends this command nor hides the others. Nothing is fetched, and nothing stays. The exit
    status is 1 if a framework that is there does not work.
    """

    name = "doctor"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--no-import", action="store_true", help="do not try the frameworks, which takes seconds")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Diagnosis:
        # Not needed by the other commands, and what it imports takes time.
        from probe.api.commands.collecting.installation import Installation

        return Diagnosis(Installation(not args.no_import))


class Diagnosis:
    """The state of an installation; each part is told as soon as it is known."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    @property
    def found(self) -> bool:
        """True if a framework that is there does not work."""
        return self._installation.is_broken

    def lines(self) -> Iterator[Line]:
        return map(Line, self._installation.lines())

    def as_json(self) -> dict[str, Any]:
        return self._installation.as_json()
