"""Rows of steps as scalars of TensorBoard."""

from __future__ import annotations

from probe.common.report.trends import TrendStep
from probe.monitor.output.event_files import EventFile
from probe.monitor.output.keys import inner_key


class BoardFiles:
    """Writes the scalars of each step; the tag of one is the inner key of its row, ``_`` and the op.

    Args:
        folder: The folder of the event files.
        rank: For the keys.

    Raises:
        MissingDependency: TensorBoard is not installed.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._rank = rank
        self._writer = EventFile(folder)

    def write(self, step: TrendStep) -> None:
        """Write one step."""
        for table in step.tables:
            for row in table.rows:
                if row.values is None:
                    continue
                micro = row.micro if table.has_micro else None
                key = inner_key(table.family, row.name, row.chunk, micro, self._rank)
                scalars = [(f"{key}_{op}", value) for op, value in zip(table.ops, row.values)]
                self._writer.add(scalars, step.number)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
