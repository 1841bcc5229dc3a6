"""The rules of another tool, as far as the pre-check asks for them: rows for each case, and tables of these rows.

An object of such rules is sent to other processes by the name of its class, which they import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from typing_extensions import Protocol

from probe.precheck.evaluated import Evaluated
from probe.precheck.result import CaseResult


@dataclass(frozen=True)
class AgainstDevice:
    """The cases of one device judged by those of another device."""

    rows: Sequence[dict[str, Any]]
    """A row for each case, in values of JSON."""
    compared: int
    worse: Sequence[str]
    """The names of the cases that are worse than on the other device."""


@dataclass(frozen=True)
class WrittenTables:
    """The tables of a run that has ended."""

    paths: Sequence[str]
    against: Optional[AgainstDevice] = None  # noqa: UP045 (evaluated, on Python 3.9 too)


class CaseTables(Protocol):
    """The tables of one run, which grow by a case at a time."""

    stem: str
    """The beginning of the paths of our own files, which stand next to these tables."""
    done: Mapping[str, CaseResult]
    """The cases that an earlier run has finished, by name, with the statuses that these tables give them."""

    def add(self, result: CaseResult) -> None:
        """Write the rows of one case, which are its `details`."""

    def finish(self) -> WrittenTables:
        """Write the tables that sum all up, and close all."""

    def close(self) -> None:
        """Close the files; this may be called twice."""


class CaseRules(Protocol):
    """Rules that judge each case besides ours."""

    def judge(self, evaluated: Evaluated, framework: str) -> tuple[Any, ...]:
        """The rows of a case; they are sent from process to process.

        Args:
            evaluated: The case with its results.
            framework: That of the dump.
        """

    def tables(self, folder: str, framework: str, resume: str | None) -> CaseTables:
        """Begin the tables of a run, or go on with them.

        Args:
            folder: Where they are written.
            framework: That of the dump.
            resume: The table of an earlier run.

        Raises:
            FileCheckException: the folder cannot be made, or the table to go on with cannot be read.
            MsprobeException: that table is damaged before its end, or another one.
        """
