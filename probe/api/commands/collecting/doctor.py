"""``msprobe doctor``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Answer, Line, Question
from probe.common.environment import files as environment_files
from probe.common.environment.differences import in_words
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.api.commands.collecting.installation import Installation


class Doctor(Question):
    """Print what is there and whether it works: Python, frameworks, compiled parts, packages; how to get the rest.

    With each framework that is there a training step is collected and read back, in a process of its own, so that one
    that is broken neither ends this command nor hides the others. Nothing is fetched, and nothing stays. The exit
    status is 1 if a framework that is there does not work. With --dump the command prints the environment in which a
    dump was made instead.
    """

    name = "doctor"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--no-import", action="store_true", help="do not try the frameworks, which takes seconds")
        add("--dump", metavar="DIR", type=arguments.path, help="print the environment of the run that made this dump")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        if args.dump is not None:
            return DumpEnvironments(args.dump, environment_files.all_in(args.dump))
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


@dataclass(frozen=True)
class DumpEnvironments:
    """The environments of the processes that made a dump."""

    path: str
    environments: dict[str, environment_files.Environment]
    found = False

    def lines(self) -> Iterator[Line]:
        for name, content in self.environments.items():
            yield Line(f"{self.path}: {name}")
            yield from (Line(f"  {text}") for text in _texts(content))

    def as_json(self) -> dict[str, Any]:
        return dict(self.environments)


def _texts(content: environment_files.Environment) -> Iterator[str]:
    for name, value in content.items():
        if name in ("format", "withheld"):
            continue
        if isinstance(value, Mapping):
            yield from (f"{name}.{each}: {in_words(one)}" for each, one in value.items())
        elif name == "optimizers" and isinstance(value, list):
            for number, optimizer in enumerate(value):
                yield f"optimizer {number}: {optimizer.get('type')}"
                for group in optimizer.get("groups", ()):
                    yield "  " + ", ".join(f"{each} = {in_words(one)}" for each, one in group.items())
        elif name == "command" and isinstance(value, list):
            yield f"{name}: {' '.join(map(str, value))}"
        elif name == "modules" and isinstance(value, list):
            for table in value:
                yield from _of_modules(table)
        elif value not in ([], ""):
            yield f"{name}: {in_words(value)}"
    yield f"withheld: {content.get('withheld', 0)} variables, which may hold secrets or decide nothing"


def _of_modules(table: Mapping[str, Any]) -> Iterator[str]:
    """A line for each group of modules with equal settings that has plain ones."""
    for group in table.get("settings", ()):
        values = [f"{each} = {in_words(one)}" for each, one in group.get("values", {}).items() if one is not None]
        values += group.get("hooks", ())
        if values:
            yield f"modules from step {table.get('step')}: {', '.join(group.get('names', ()))}: {', '.join(values)}"
