"""``msprobe recover``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from probe.api.commands import arguments
from probe.api.commands.invocation import Invocation
from probe.api.commands.question import Line, Question
from probe.common.dump.layout import JOURNAL_FILE
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    from probe.common.dump.recovery import Recovered


class Recover(Question):
    """Make dump.json, stack.json and construct.json of runs that died, from the journals they left below DIR.

    A journal is kept, so that nothing is lost if the files are not what you expected; --remove takes it away once its
    files are written.
    """

    name = "recover"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("directory", metavar="DIR", type=arguments.path, help="a dump_path, or any folder in it")
        parser.add_argument("--remove", action="store_true", help="remove each journal after its files are written")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Recovery:
        return Recovery(args.directory, args.remove, invocation)


@dataclass(frozen=True)
class Recovery:
    """The journals below a folder; each is told of as soon as its files are made."""

    directory: str
    remove: bool
    invocation: Invocation
    found: bool = False

    def lines(self) -> Iterator[Line]:
        nothing = True
        for recovered in self._recovered():
            nothing = False
            if recovered.problem is None:
                left = f"; {recovered.unwritten} tensors had not been written yet" if recovered.unwritten else ""
                made = f"{recovered.records} records in {recovered.file_name}"
                yield Line(f"{recovered.folder}: {made}{_torn(recovered)}{left}")
        for journal in self._set_aside():
            nothing = False
            yield Line(f"{journal} belongs to an earlier run; to use it, move it to an empty folder as {JOURNAL_FILE}.")
        if nothing:
            text = "nothing to recover: its runs ended normally, or were recovered before."
            yield Line(f"{self.directory}: {text}")

    def as_json(self) -> dict[str, Any]:
        return {"recovered": list(map(asdict, self._recovered())), "set_aside": self._set_aside()}

    def _recovered(self) -> Iterator[Recovered]:
        from probe.common.dump.recovery import recover

        for recovered in recover(self.directory, self.remove):
            if recovered.problem is not None:
                self.invocation.problem(recovered.problem)
            yield recovered

    def _set_aside(self) -> list[str]:
        from probe.common.dump.recovery import set_aside

        return set_aside(self.directory)


def _torn(found: Recovered) -> str:
    if found.torn_at is None:
        return ""
    if found.lost:
        size = f"{found.lost} bytes" if found.lost < 1024 else f"{found.lost / 1024:.0f} KiB"
        return f"; the journal is damaged at byte {found.torn_at}; what follows, {size}, is lost"
    return f"; the last record was cut off at byte {found.torn_at} and is lost"
