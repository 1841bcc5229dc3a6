"""Rows of steps as scalars of TensorBoard."""

from __future__ import annotations

from typing import Any

from probe.common.errors import MissingDependency
from probe.common.report.trends import TrendStep
from probe.monitor.output.keys import row_key


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
        self._writer = _writer(folder)
        self._tags: dict[tuple[str, str, str], str] = {}

    def write(self, step: TrendStep) -> None:
        """Write one step."""
        add = self._writer.add_scalar
        for table in step.tables:
            for row in table.rows:
                if row.values is None:
                    continue
                key = row_key(table, row, self._rank)
                for op, value in zip(table.ops, row.values):
                    add(f"{key}_{op}", value, step.number)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def _writer(folder: str) -> Any:
    for package in ("tensorboardX", "torch.utils.tensorboard"):
        try:
            module = __import__(package, fromlist=["SummaryWriter"])
            return module.SummaryWriter(folder)
        except ImportError:
            continue
    raise MissingDependency('format "tensorboard" needs TensorBoard; install it: pip install tensorboard.')
