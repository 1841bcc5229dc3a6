"""``free_benchmark.csv``: the calls of one step and rank of which something is to be said."""

from __future__ import annotations

import contextlib
import os
from dataclasses import astuple, dataclass
from typing import Optional

from probe.common import files, log
from probe.common.errors import FileCheckException
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
        self.exists = False
        """True if a line of this step was written."""
        self._is_ours = False
        """True if no file of an earlier run is there any more."""

    def remove_earlier(self) -> None:
        """Remove the file of an earlier run, whose findings must not stand for this one; called when the step is one.

        Raises:
            OSError: it cannot be removed.
        """
        if self._is_ours:
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self.path)
        self._is_ours = True

    def move(self, folder: str) -> None:
        """Go on in the folder of the rank, which is known now; if the file cannot be moved, it stays where it is."""
        path = os.path.join(folder, FILE)
        if path == self.path:
            return
        if self.exists:
            try:
                files.make_folder(folder)
                os.replace(self.path, path)
            except (OSError, FileCheckException) as error:
                log.warning(f"{self.path} cannot be moved to {folder} ({error}); further findings go to the same file.")
                return
            with contextlib.suppress(OSError):
                # A folder that holds files of others stays.
                os.rmdir(self._folder)
            log.info(f"This process has a rank now: its file {self.path} is renamed to {path}.")
        self._folder, self.path = folder, path
        self._is_ours = self.exists

    def add(self, finding: CheckFinding) -> None:
        """Write a line, at once: the program may end at any time.

        Raises:
            OSError: it cannot be written.
            FileCheckException: the folder cannot be made.
        """
        self.remove_earlier()
        if not self.exists:
            for folder in (os.path.dirname(os.path.dirname(self._folder)), os.path.dirname(self._folder), self._folder):
                files.make_folder(folder)
        lines = csv_line(astuple(finding)) if self.exists else csv_line(HEADER) + csv_line(astuple(finding))
        with files.open_for_writing(self.path, append=True) as stream:
            stream.write(lines)
        self.exists = True
