"""The table of details of one device judged by that of another: ``msprobe api_precision_compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from probe.msprobe_rules.output.comparisons import write
from probe.msprobe_rules.output.details import SKIP, read_details
from probe.msprobe_rules.output.layout import LAYOUTS
from probe.msprobe_rules.precheck.methods import Method
from probe.msprobe_rules.precheck.our_outputs import worst_of


@dataclass(frozen=True)
class ComparedCase:
    """One case, as the table of results has it, and the worse of its two statuses."""

    name: str
    forward: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    backward: Optional[str]  # noqa: UP045
    message: str
    worst: str


@dataclass(frozen=True)
class TwoDevices:
    """The outcome for two tables."""

    statuses: Sequence[str]
    """The statuses of the rows of details."""
    cases: Sequence[ComparedCase]
    paths: Sequence[str]
    """The two tables that were written."""

    @property
    def is_any_judged(self) -> bool:
        """True if a row has another status than that it was left out."""
        return any(status != SKIP for status in self.statuses)


def compare_devices(npu: str, gpu: str, folder: str, method: Method, headers: str) -> TwoDevices:
    """Judge the table of an NPU by that of a GPU, and write the two tables of that.

    Args:
        npu, gpu: The two tables of details.
        folder: Where the tables are written.
        method: Ours, or that of release 26.2.
        headers: ``english`` or ``msprobe``: what the tables look like.

    Raises:
        FileCheckException: a file cannot be read, or the folder cannot be made.
        MsprobeException: a table is damaged.
    """
    rows, results = method.compare(read_details(npu), read_details(gpu))
    paths = write(folder, rows, results, LAYOUTS[headers])
    cases = [
        ComparedCase(
            row.name,
            row.forward,
            row.backward,
            row.message,
            worst_of([status for status in (row.forward, row.backward) if status]),
        )
        for row in results
    ]
    return TwoDevices([row.status for row in rows], cases, paths)
