"""Files of TensorBoard with scalars, written by the package tensorboard and without a framework."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from probe.common import clock, files
from probe.common.errors import MissingDependency
from probe.common.report.trends import TrendStep
from probe.monitor.output.keys import inner_key


class EventFile:
    """Scalars of one folder, ``events.out.tfevents.*``.

    Args:
        folder: The folder; it is made.

    Raises:
        MissingDependency: tensorboard is not installed.
        FileCheckException: the folder cannot be made.
    """

    def __init__(self, folder: str) -> None:
        writer, self._event, self._summary = load_tensorboard()
        files.make_folder(folder)
        before = set(os.listdir(folder))
        self._writer = writer(folder)
        for name in set(os.listdir(folder)) - before:
            # The package leaves the mode to the umask.
            with contextlib.suppress(OSError):
                os.chmod(os.path.join(folder, name), files.FILE_MODE)

    def add(self, scalars: list[tuple[str, float]], step: int) -> None:
        """Add values with their tags."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars]
        self._writer.add_event(self._event(wall_time=clock.now(), step=step, summary=self._summary(value=values)))

    def write(self, step: TrendStep, rank: int) -> None:
        """Add the rows of a step; the tag of a value is the inner key of its row, ``_`` and the op."""
        for table in step.tables:
            for row in table.rows:
                if row.values is not None:
                    micro = row.micro if table.has_micro else None
                    key = inner_key(table.family, row.name, row.chunk, micro, rank)
                    self.add([(f"{key}_{op}", value) for op, value in zip(table.ops, row.values)], step.number)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def load_tensorboard() -> tuple[Any, Any, Any]:
    """The classes of tensorboard for a file, an event and a summary.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise MissingDependency("tensorboard is needed for TensorBoard files; run: pip install tensorboard.") from None
    return EventFileWriter, Event, Summary
