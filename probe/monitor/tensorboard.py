"""Files of TensorBoard with scalars, written by the package tensorboard and without a framework."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from probe.common import clock, files
from probe.common.errors import MissingDependency, MsprobeException
from probe.common.harmless_text import show
from probe.common.report.trends import TrendStep
from probe.monitor.csv_rows import Columns, RankFolder, folders_of, joined
from probe.monitor.monitor_run import Follower
from probe.monitor.tables import TIME, inner_key, moment


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

    def add_text(self, tag: str, text: str) -> None:
        """Add a text with its tag; its lines stay lines."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        lines = text.replace("\n", "  \n")  # as Markdown ends a line
        self._writer.add_event(self._event(wall_time=clock.now(), step=0, summary=text_pb(tag, lines)))

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


# --- tensorboard


_NO_SCALARS = ("shape", "dtype", "id")


def csv2tensorboard_by_step(
    monitor_path: str,
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | None = None,
) -> str:
    """Write the rows of monitor folders as TensorBoard files, ``rank<R>/<family>/events.out.tfevents.*``.

    A tag is ``vp0:<name>/<op>``, and ``vp0:<name>:micro0/<op>`` where rows have micro steps. The step is that of the
    training.

    Args:
        monitor_path: The output folder of a monitor.
        time_start, time_end: The closed range of times of folders, as in their names: ``Nov27_10-00-00``.
        process_num: The number of processes.
        data_type_list: Families that are written, such as ``["grad_reduced"]``; all by default.
        output_dirpath: The folder that is written; by default ``<time>-csv2tensorboard_by_step`` in `monitor_path`.

    Returns:
        The folder that was written.

    Raises:
        MsprobeException: an argument is wrong, or no folder lies in the range.
        MissingDependency: no writer of TensorBoard files is installed.
    """
    if isinstance(process_num, bool) or not isinstance(process_num, int) or process_num < 1:
        raise MsprobeException(f"process_num is {show(process_num)}; allowed: an integer of 1 or more.")
    load_tensorboard()
    folders = [each for each in folders_of(monitor_path) if _is_in_range(each, time_start, time_end)]
    if not folders:
        span = f" between {time_start or 'the first'} and {time_end or 'the last'}" if time_start or time_end else ""
        raise MsprobeException(f"{monitor_path} holds no rows of a monitor{span}.")
    name = f"{clock.stamp(TIME)}-csv2tensorboard_by_step"
    output = os.path.join(monitor_path, name) if output_dirpath is None else output_dirpath
    work = [(each, output, None if data_type_list is None else tuple(data_type_list)) for each in folders]
    if process_num == 1 or len(work) == 1:
        for each in work:
            _write_folder(*each)
    else:
        with ProcessPoolExecutor(min(process_num, len(work))) as pool:
            list(pool.map(_write_folder, *zip(*work)))
    return output


def _is_in_range(folder: RankFolder, first: str | None, last: str | None) -> bool:
    if first is None and last is None:
        return True
    time = moment(folder.time)
    return (
        time != ()
        and (first is None or _given("time_start", first) <= time)
        and (last is None or time <= _given("time_end", last))
    )


def _given(name: str, text: str) -> tuple[int, ...]:
    found = moment(text)
    if not found:
        allowed = "a time as in names of folders, such as Nov27_10-00-00"
        raise MsprobeException(f"{name} is {show(text)}; allowed: {allowed}.")
    return found


def _write_folder(folder: RankFolder, output: str, wanted: tuple[str, ...] | None) -> None:
    for each in joined(Follower(folder.path).parts(folder, is_last=True)).values():
        if wanted is not None and each.family not in wanted:
            continue
        written = EventFile(os.path.join(output, f"rank{folder.rank}", each.family))
        try:
            _write_rows(written, each)
        finally:
            written.close()


def _write_rows(file: EventFile, columns: Columns) -> None:
    for row, name in enumerate(columns.name):
        micro = f":micro{columns.micro[row]}" if columns.has_micro else ""
        tag = f"vp{columns.stage[row]}:{name}{micro}"
        scalars = [(f"{tag}/{op}", of_rows[row]) for op, of_rows in columns.statistics.items() if op not in _NO_SCALARS]
        file.add(scalars, columns.step[row])
