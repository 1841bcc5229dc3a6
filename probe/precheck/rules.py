"""The rules of another tool, as far as the pre-check asks for them: rows for each case, and tables of these rows.

An object of such rules is sent to other processes by the name of its class, which they import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from typing_extensions import Protocol

from probe.calls.judged_results import JudgedResult
from probe.precheck.case_results import CaseResult, EvaluatedCase


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
    """The tables of one run."""

    def write(self, results: Sequence[CaseResult]) -> WrittenTables:
        """Write the rows of all cases, which are their `details`, and the tables that sum them up."""


class CaseRules(Protocol):
    """Rules for the tables of another tool."""

    @property
    def name(self) -> str:
        """The name by which users choose these rules; a run goes on under the same ones only."""

    def judge(
        self, evaluated: EvaluatedCase, judged: Sequence[JudgedResult], framework: str
    ) -> tuple[Mapping[str, Any], ...]:
        """The rows of a case in values of JSON, also tuples and floats that are not finite; the journal keeps them.

        Args:
            evaluated: The case with its results.
            judged: Our verdicts on the results.
            framework: That of the dump.
        """

    def tables(self, folder: str, time: str, framework: str) -> CaseTables:
        """Begin the tables of a run, or go on with them.

        Args:
            folder: Where they are written.
            time: The time in the names of all files of the run.
            framework: That of the dump.

        Raises:
            FileCheckException: a table that they need cannot be read.
            MsprobeException: that table is damaged, or another one.
        """
