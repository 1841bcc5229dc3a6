"""The rows of monitor folders as TensorBoard files: ``csv2tensorboard_by_step``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from probe.common.errors import MsprobeException
from probe.common.show import show
from probe.monitor.output.event_files import EventFile, load_tensorboard
from probe.monitor.reading.csv_rows import Columns, read_file
from probe.monitor.reading.locating import RankFolder, folders_of

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
    name = f"{time.strftime('%b%d_%H-%M-%S')}-csv2tensorboard_by_step"
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
    moment = _moment(folder.time)
    if moment is None:
        return False
    return (first is None or _given("time_start", first) <= moment) and (
        last is None or moment <= _given("time_end", last)
    )


def _given(name: str, text: str) -> time.struct_time:
    found = _moment(text)
    if found is None:
        raise MsprobeException(
            f"{name} is {show(text)}; allowed: a time as in names of folders, such as Nov27_10-00-00."
        )
    return found


def _moment(text: str) -> time.struct_time | None:
    try:
        # A leap year, so that Feb29 is a day.
        return time.strptime(f"2024 {text}", "%Y %b%d_%H-%M-%S")
    except (ValueError, TypeError):
        return None


def _write_folder(folder: RankFolder, output: str, wanted: tuple[str, ...] | None) -> None:
    families: dict[str, Columns] = {}
    for file in folder.files:
        for each in read_file(file).families:
            if wanted is not None and each.family not in wanted:
                continue
            if each.family in families:
                families[each.family].add(each)
            else:
                families[each.family] = each
    for each in families.values():
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
