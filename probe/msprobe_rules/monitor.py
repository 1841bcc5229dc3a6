"""The rules of msProbe for a monitor, its files of anomalies, and the database of ``data2db``.

As msProbe has them, they alarm on every missing gradient and on every mean close to zero. As we have them
by default, missing gradients are not judged, and a value is compared only when it has a history and a size.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from probe.common import files
from probe.common.config.fields import Location, quoted
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.harmless_text import show
from probe.monitor.alerts.rows import FamilyRows, Finding, Flags, Floats, Integers
from probe.monitor.alerts.tracks import Block, blocks_of
from probe.monitor.csv_rows import Columns
from probe.monitor.monitor_run import MonitorRun, read_monitor

TURBULENCE, NAN = "AnomalyTurbulence", "AnomalyNan"
NAMES = (TURBULENCE, NAN)
_TURBULENCE_OPS = ("norm", "mean")
_OLD, _NEW = 0.99, 0.01
"""The weights of the history and of a value in the history; those of msProbe (seen, exact)."""
_LEAST_SHARE = 1e-3
"""Ratio of a mean to the root mean square of its row, below which the mean is noise. For few elements the limit is one
divided by the square root of their number, the mean of random signs. A guess for more than a million elements."""


@dataclass(frozen=True)
class NamedRule:
    """One rule of the configuration."""

    name: str
    threshold: float | None = None

    def message(self, key: str, op: str, step: int, value: float, history: float) -> str:
        """The line that msProbe logs."""
        return (
            f"Rule {self.name} reports anomaly signal in ('{key}', '{op}') at step {step}, "
            f"current value {value}, history mean {history}."
        )


@dataclass
class _Histories:
    """The history of abs(value) of every row and op of the families with the same ops."""

    mean: Floats
    count: Floats
    positions: dict[tuple[str, int, int], int] = field(default_factory=dict)
    key: object = None
    """The `Block.key` of the step before."""
    at: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The positions of the rows of that step in `mean` and `count`."""


class NamedRules:
    """A judge that applies msProbe's rules in the order in which they are configured: the first that matches reports.

    Args:
        rules: The rules.
        min_history: Steps that a row needs before it is compared.
        is_exact: True if every value is judged as msProbe does it: from the second one on, missing gradients and means
            of noise as well. By default values that alarm are no history, which begins as an average.
    """

    def __init__(self, rules: Sequence[NamedRule], min_history: int = 5, is_exact: bool = False) -> None:
        self._rules = tuple(rules)
        self._min_history, self._is_exact = 1 if is_exact else min_history, is_exact
        self._histories: dict[tuple[str, ...], _Histories] = {}

    def judge(self, rows: Sequence[FamilyRows]) -> list[Finding]:
        # All families with the same statistics at once: in a small one, most of the time is that of calling numpy.
        found: dict[int, list[Finding]] = {id(each): [] for each in rows}
        # Rows are counted over all families where nobody counted calls.
        firsts = dict(zip(found, accumulate((len(each.names) for each in rows), initial=0)))
        for block in blocks_of(rows):
            for row, op, rule, history in self._matches(block):
                index = bisect_right(block.starts, row) - 1
                family, row = block.families[index], row - block.starts[index]
                found[id(family)].append(_finding(family, row, op, firsts[id(family)], rule, history))
        return [each for of_family in found.values() for each in of_family]

    def _matches(self, block: Block) -> Iterator[tuple[int, int, NamedRule, float]]:
        """Row, op, rule and history of each value that a rule reports; the values become history."""
        histories = self._histories.get(block.ops)
        if histories is None:
            empty = np.zeros((0, len(block.ops)))
            histories = self._histories[block.ops] = _Histories(empty, empty)
        at = _positions(histories, block)
        values, history, count = np.abs(block.values), histories.mean[at], histories.count[at]
        # A statistic that msProbe does not compute has no history and is not judged.
        with np.errstate(invalid="ignore", over="ignore"):
            by = self._matching(block, values, history, count)
            # As msProbe computes it, to the last digit.
            new = np.where(count, _NEW, 1.0) if self._is_exact else np.maximum(_NEW, 1 / (count + 1))
            after = np.where(count == 0, values, (_OLD if self._is_exact else 1 - new) * history + new * values)
            if not self._is_exact:
                after = np.where((by >= 0) | ~np.isfinite(after), history, after)
            histories.mean[at] = after
        histories.count[at] = count + 1
        for row, op in zip(*(each.tolist() for each in np.nonzero(by >= 0))):
            yield row, op, self._rules[by[row, op]], float(history[row, op])

    def _matching(self, block: Block, values: Floats, history: Floats, count: Floats) -> np.ndarray:
        """The index of the first rule that matches each value, or -1."""
        found = np.full(values.shape, -1)
        for index, rule in enumerate(self._rules):
            matches = (
                self._nan(rule, values) if rule.name == NAN else self._turbulence(rule, block, values, history, count)
            )
            found[matches & (found < 0)] = index
        if not self._is_exact:
            every = block.families
            judged = [np.ones(len(each.names), np.bool_) if each.judged is None else each.judged for each in every]
            found[~np.concatenate(judged)] = -1
        return found

    @staticmethod
    def _nan(rule: NamedRule, values: Floats) -> Flags:
        found: Flags = np.isnan(values)
        return found if rule.threshold is None else found | (values > rule.threshold)

    def _turbulence(self, rule: NamedRule, block: Block, values: Floats, history: Floats, count: Floats) -> Flags:
        found: Flags = np.zeros(values.shape, dtype=np.bool_)
        if rule.threshold is None:
            return found
        for op in set(_TURBULENCE_OPS).intersection(block.ops):
            column = block.ops.index(op)
            has_history = count[:, column] >= self._min_history
            jumps = values[:, column] > (1 + rule.threshold) * history[:, column]
            found[:, column] = jumps & has_history & self._has_size(block, op, values[:, column])
        return found

    def _has_size(self, block: Block, op: str, values: Floats) -> Flags | bool:
        norm = block.column("norm")
        if op != "mean" or norm is None or self._is_exact:
            return True
        # Of an unknown number nothing is left out: comparisons with NaN are false.
        numel = [np.full(len(each.names), np.nan) if each.numel is None else each.numel for each in block.families]
        root = np.sqrt(np.maximum(np.concatenate(numel), 1))
        found: Flags = ~(values < np.maximum(_LEAST_SHARE, 1 / root) * (norm / root))
        return found


def _finding(rows: FamilyRows, row: int, op: int, first: int, rule: NamedRule, history: float) -> Finding:
    value = float(rows.values[row, op])
    why = rule.message(rows.inner_key(row), rows.ops[op], rows.step, value, history)
    made = rows.finding(row, rows.ops[op], rule.name, value, f"history mean {history:.6g}", why)
    return made if rows.calls is not None else replace(made, call=first + row)


def _positions(histories: _Histories, rows: Block) -> Integers:
    """The positions of rows in the histories, which grow with rows that are new."""
    # Most steps have the rows of the one before, as the same objects, which are equal at once.
    if histories.key == rows.key:
        return histories.at
    known = histories.positions
    at = np.array([known.setdefault(key, len(known)) for key in rows.row_keys()], dtype=np.int64)
    histories.key, histories.at = rows.key, at
    missing = len(known) - len(histories.mean)
    if missing:
        more = np.zeros((missing, histories.mean.shape[1]))
        histories.mean = np.concatenate((histories.mean, more))
        histories.count = np.concatenate((histories.count, more))
    return at


def named_rules(rules: Sequence[object], location: Location) -> tuple[NamedRule, ...]:
    """The rules of a configuration: each a name, or ``{"rule_name": "AnomalyNan", "args": {"threshold": 1e6}}``.

    Raises:
        MsprobeException: a rule is wrong.
    """
    return tuple(_rule(each, location.item(at)) for at, each in enumerate(rules))


def _rule(entry: object, location: Location) -> NamedRule:
    if isinstance(entry, str):
        entry = {"rule_name": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("rule_name"), str):
        raise location.wrong(entry, 'an object with "rule_name" and "args", or a name')
    name, args = entry["rule_name"], entry.get("args", {})
    if name not in NAMES:
        raise Location(location.origin, f"{location.key}.rule_name").wrong(name, quoted(NAMES))
    inner = Location(location.origin, f"{location.key}.args")
    if not isinstance(args, Mapping):
        raise inner.wrong(args, 'an object with "threshold"')
    threshold, inner = args.get("threshold"), Location(location.origin, f"{inner.key}.threshold")
    if threshold is None:
        if name == TURBULENCE:
            text = f'{inner.origin}: "{inner.key}" is missing; {TURBULENCE} needs a number of 0 or more.'
            raise MsprobeException(text)
        return NamedRule(name)
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not threshold >= 0:
        raise inner.wrong(threshold, "a number of 0 or more")
    return NamedRule(name, float(threshold))


# --- anomaly file


FOLDER, ANOMALIES, ANALYSIS = "anomaly_detected", "anomaly.json", "anomaly_analyse.json"
_LARGEST = 1 << 30
"""Bytes of a file that is read. A guess: a million anomalies have 400 MB."""


class AnomalyFile:
    """``anomaly_detected/rank<R>/anomaly.json`` below the folder of a monitor.

    Args:
        folder: The folder of the monitor.
        rank: The rank that writes.
        group_mates: Ranks that run the same stage.
        pp_stage: The pipeline stage of the rank.
        overwrites: As msProbe: of two statistics of one row in one step only the last is kept.
    """

    def __init__(
        self, folder: str, rank: int, group_mates: Sequence[int] = (), pp_stage: int = 0, overwrites: bool = False
    ) -> None:
        self._folder, self._rank = os.path.join(folder, FOLDER, f"rank{rank}"), rank
        self._mates, self._stage = list(group_mates) or [rank], pp_stage
        self._overwrites = overwrites
        self._entries: dict[str, dict[str, Any]] = {}
        self._written = 0

    @property
    def path(self) -> str:
        return os.path.join(self._folder, ANOMALIES)

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings, and write the file anew if one is new.

        Raises:
            OSError: it cannot be written.
            FileCheckException: its folder cannot be made.
        """
        for found in findings:
            key = f"{found.key}_step_{found.step}_call_{found.call}"
            if not self._overwrites and key in self._entries:
                key = f"{key}_{found.op}"
            self._entries[key] = {
                "rank": found.rank,
                "step": found.step,
                "micro_step": found.micro_step,
                "pp_stage": self._stage,
                "vpp_stage": found.vpp_stage,
                "call_id": found.call,
                "tag_name": found.key,
                "message": found.why,
                "group_mates": self._mates,
            }
        if len(self._entries) > self._written:
            files.make_folder(self._folder)
            _write_anomalies(self.path, self._entries)
            self._written = len(self._entries)


def analyse(folder: str, output: str | None = None, most: int = 8, steps: Sequence[int] | None = None) -> str:
    """Write the first anomalies of all ranks, in the order of step and call.

    Args:
        folder: ``anomaly_detected``, with a folder for each rank.
        output: Where ``anomaly_analyse.json`` is written; by default the same folder.
        most: The number of anomalies.
        steps: The steps of which anomalies are taken; all by default.

    Returns:
        The path of the file.

    Raises:
        MsprobeException: there is no file of anomalies, or one cannot be read.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    paths = [os.path.join(folder, name, ANOMALIES) for name in names if name.startswith("rank")]
    paths = [path for path in paths if os.path.isfile(path)]
    if not paths:
        raise FileCheckException(f"{folder} has no rank<R>/{ANOMALIES}; give the folder {FOLDER} of a monitor.")
    for path in paths:
        found += read_anomalies(path).items()
    chosen = [each for each in found if steps is None or not steps or each[1].get("step") in steps]
    chosen.sort(key=lambda each: (each[1].get("step", 0), each[1].get("call_id", 0)))
    # Stable: equal steps and calls stay in the order of ranks.
    target = folder if output is None else output
    files.make_folder(target)
    path = os.path.join(target, ANALYSIS)
    _write_anomalies(path, dict(chosen[:most]))
    return path


def read_anomalies(path: str) -> dict[str, dict[str, Any]]:
    """The objects of a file of anomalies, by their keys.

    Raises:
        MsprobeException: the file cannot be read.
    """
    try:
        with files.open_for_reading(path) as stream:
            content = json.loads(stream.read(_LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise MsprobeException(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict) or not all(isinstance(each, dict) for each in content.values()):
        raise MsprobeException(f"{path} is no file of anomalies; expected an object of objects.")
    return content


def _write_anomalies(path: str, content: Mapping[str, Any]) -> None:
    with files.replacing(path) as stream:
        stream.write(json.dumps(content, indent=1).encode())


# --- database


NAME = "monitor_data.trend.db"
STATISTICS = ("norm", "max", "min", "mean")
LARGEST = 1e9
"""The largest number in msProbe's database; observed."""
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
            _write_rows(name, run, mapping or {})
    except (OSError, sqlite3.Error) as error:
        raise FileCheckException(f"{target} cannot be written: {error}.") from error
    return target


def _write_rows(name: str, run: MonitorRun, mapping: Mapping[str, str]) -> None:
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
