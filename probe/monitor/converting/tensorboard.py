"""The rows of monitor folders as TensorBoard files: ``csv2tensorboard_by_step``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from probe.common import clock
from probe.common.errors import MsprobeException
from probe.common.show import show
from probe.monitor.output.folders import TIME, moment
from probe.monitor.output.tensorboard import EventFile, load_tensorboard
from probe.monitor.reading.csv_rows import Columns, joined
from probe.monitor.reading.locating import RankFolder, folders_of
from probe.monitor.reading.run import Follower

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
