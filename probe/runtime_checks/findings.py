"""``free_benchmark.csv``: the calls of one step and rank of which something is to be said."""

from __future__ import annotations

import contextlib
import os
from dataclasses import astuple, dataclass
from typing import Optional

from probe.common import files
from probe.common.report.csv_lines import csv_line

FILE = "free_benchmark.csv"
HEADER = (
    "rank", "pert_mode", "stage", "step", "api_name", "max_rel", "dtype", "shape", "output_index", "verdict",
    "explanation",
)  # fmt: skip
UNSTABLE = "unstable"
"""The kernel: what it gives is not explained by what the function itself does with these inputs."""
ILL_CONDITIONED = "ill-conditioned"
"""The inputs: the function itself makes much of a rounding of them, so that no kernel could do better."""
NOT_DETERMINISTIC = "not deterministic"
"""The kernel gives other bits for the same inputs."""


@dataclass(frozen=True)
class CheckFinding:
    """One line, in the order of the columns."""

    rank: Optional[int]  # noqa: UP045 (evaluated, on Python 3.9 too)
    pert_mode: str
    stage: str
    step: int
    api_name: str
    max_rel: float
    """The largest difference between the two results that are compared, by the size of the first one."""
    dtype: str
    shape: str
    output_index: Optional[int]  # noqa: UP045
    verdict: str
    explanation: str


class FindingsFile:
    """The file of one step, which is there from the first finding on.

    Args:
        folder: The folder of the step and rank.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.path = os.path.join(folder, FILE)
        self._begun = False
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # What an earlier run found must not stand for this one.
            os.unlink(self.path)

    def add(self, finding: CheckFinding) -> None:
        """Write a line, at once: the program may end at any time.

        Raises:
            OSError: it cannot be written.
            FileCheckException: the folder cannot be made.
        """
        if not self._begun:
            for folder in (os.path.dirname(os.path.dirname(self._folder)), os.path.dirname(self._folder), self._folder):
                files.make_folder(folder)
        lines = csv_line(astuple(finding)) if self._begun else csv_line(HEADER) + csv_line(astuple(finding))
        with files.open_for_writing(self.path, append=True) as stream:
            stream.write(lines)
        self._begun = True
