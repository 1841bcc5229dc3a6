"""The rows of a monitor as an SQLite file, ``monitor_data.trend.db``.

Values are those of msProbe's file: norm, max, min and mean, cut to a billion, an infinity just beyond it. NaN is NULL.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterator, Mapping

from probe.common import files
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.show import show
from probe.monitor.reading.csv_rows import Columns
from probe.monitor.reading.run import MonitorRun, read_monitor

NAME = "monitor_data.trend.db"
STATISTICS = ("norm", "max", "min", "mean")
LARGEST = 1e9
_TABLES = (
    "CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY, metric_name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE monitoring_targets (target_id INTEGER PRIMARY KEY, target_name TEXT NOT NULL, "
    "vpp_stage INTEGER NOT NULL, micro_step INTEGER NOT NULL, UNIQUE (target_name, vpp_stage, micro_step))",
    "CREATE TABLE trend_data (metric_id INTEGER NOT NULL, target_id INTEGER NOT NULL, rank INTEGER NOT NULL, "
    "step INTEGER NOT NULL, norm REAL, max REAL, min REAL, mean REAL)",
    "CREATE TABLE global_stats (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
)
_INDEX = "CREATE INDEX trend_index ON trend_data (metric_id, rank, step, target_id)"


def data2db(path: str, output: str, mapping: Mapping[str, str] | None = None) -> str:
    """Write the rows of a monitor to a database.

    Args:
        path: The output folder of a monitor.
        output: The folder of ``monitor_data.trend.db``.
        mapping: Ordered replacements in the names of rows.

    Returns:
        The path of the database.

    Raises:
        MsprobeException: the folder holds no rows, or the mapping is none.
        FileCheckException: the database cannot be written.
    """
    if mapping is not None and not all(isinstance(each, str) for pair in mapping.items() for each in pair):
        raise MsprobeException(f"the mapping is {show(mapping)}; allowed: an object of texts.")
    run = read_monitor(path)
    files.make_folder(output)
    target = os.path.join(output, NAME)
    try:
        with files.replacing_by_name(target) as name:
            _write(name, run, mapping or {})
    except (OSError, sqlite3.Error) as error:
        raise FileCheckException(f"{target} cannot be written: {error}.") from error
    return target


def _write(name: str, run: MonitorRun, mapping: Mapping[str, str]) -> None:
    connection = sqlite3.connect(name, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("BEGIN")
        for table in _TABLES:
            connection.execute(table)
        metrics: dict[str, int] = {}
        targets: dict[tuple[str, int, int], int] = {}
        for rank in run.ranks:
            for family, columns in run.of_rank[rank].items():
                metric = metrics.setdefault(family, len(metrics))
                rows = _rows(columns, metric, rank, targets, mapping)
                connection.executemany("INSERT INTO trend_data VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.executemany(
            "INSERT INTO monitoring_metrics VALUES (?, ?)", [(at, each) for each, at in metrics.items()]
        )
        numbered = [(at, *each) for each, at in targets.items()]
        connection.executemany("INSERT INTO monitoring_targets VALUES (?, ?, ?, ?)", numbered)
        steps = run.steps
        facts = {"max_rank": max(run.ranks), "min_step": steps[0], "max_step": steps[-1]} if steps else {}
        connection.executemany("INSERT INTO global_stats VALUES (?, ?)", facts.items())
        connection.execute(_INDEX)
        connection.execute("COMMIT")
    finally:
        connection.close()


def _rows(
    columns: Columns, metric: int, rank: int, targets: dict[tuple[str, int, int], int], mapping: Mapping[str, str]
) -> Iterator[tuple[object, ...]]:
    statistics = [columns.statistics.get(name) for name in STATISTICS]
    for row, name in enumerate(columns.name):
        for old, new in mapping.items():
            name = name.replace(old, new)
        target = targets.setdefault((name, columns.stage[row], columns.micro[row]), len(targets))
        values = [None if each is None else cut(each[row]) for each in statistics]
        yield (metric, target, rank, columns.step[row], *values)


def cut(value: float) -> float | None:
    """A value as the file has it: within a billion, an infinity just beyond; ``None`` for NaN."""
    if math.isnan(value):
        return None
    if math.isinf(value):
        return math.copysign(LARGEST + 1, value)
    return min(max(value, -LARGEST), LARGEST)
