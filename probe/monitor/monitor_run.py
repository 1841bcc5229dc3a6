"""One run of a monitor: the rows of all ranks, step by step or as columns."""

from __future__ import annotations

import ast
import base64
import binascii
import importlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from probe.common import files, log
from probe.common.dump.reading.selected_items import installed_library
from probe.common.errors import FileCheckException, MissingDependency
from probe.common.numerics.sketch import LANES, VERSION
from probe.common.report.trends import FROZEN, SKETCH
from probe.monitor.alerts.rows import FamilyRows, Flags, Floats
from probe.monitor.csv_rows import Columns, Located, MonitorFile, RankFolder, joined, locate, parse

_KEY = ("step", "micro_step", "vpp_stage", "family", "name")
_PLACEMENT = "placement"
_SHARD = re.compile(r"\bS\(|_S\(|Shard\(")
"""``S(0)``, as torch writes a placement, or ``Shard(dim=0)``."""


def joined_shards(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The table with one row for the shards of each parameter, of the lowest rank, and all other rows as they are.

    If a rank is missing, so that its shards do not make up whole copies of the parameter, they stay rows of their own.

    Sums are divided by the number of copies where shards are replicated. A statistic that does not follow from those of
    the shards, such as ``kurtosis``, is NaN.
    """
    if _PLACEMENT not in columns:
        return columns
    groups: dict[tuple[Any, ...], list[int]] = {}
    order: list[list[int]] = []
    keys = [columns[name] for name in _KEY if name in columns]
    for row, placement in enumerate(columns[_PLACEMENT]):
        if not isinstance(placement, str) or not _SHARD.search(placement):
            order.append([row])
            continue
        key = tuple(column[row] for column in keys)
        if key not in groups:
            groups[key] = []
            order.append(groups[key])
        groups[key].append(row)
    joined: dict[str, list[Any]] = {name: [] for name in columns}
    for rows in order:
        whole = shape_of(columns[_PLACEMENT][rows[0]].rpartition(" of ")[2]) if len(rows) > 1 else None
        counts = [math.prod(shape_of(columns["shape"][row]) or ()) for row in rows]
        copies = sum(counts) / (math.prod(whole or ()) or math.inf)
        is_whole = bool(whole) and copies > 0 and copies.is_integer()
        for name, column in columns.items():
            values = [column[row] for row in rows]
            if not is_whole:
                joined[name] += values
            elif name == "shape":
                joined[name].append(str(whole))
            elif name == _PLACEMENT:
                joined[name].append(f"joined from {len(rows)} ranks")
            elif name == "rank":
                joined[name].append(min(values))
            elif name == "dtype" or name in _KEY:
                joined[name].append(values[0])
            else:
                joined[name].append(_whole_statistic(name, values, counts, copies))
    return joined


def _whole_statistic(op: str, values: list[float], counts: list[int], copies: float) -> float:
    """A statistic of all shards together; NaN if it does not follow from theirs."""
    if op == "norm":
        return math.sqrt(sum(value * value for value in values) / copies)
    if op in ("l1", "nans", "infs"):
        return sum(values) / copies
    # An empty shard has none of the others.
    held = [(value, count) for value, count in zip(values, counts) if count]
    if op in ("mean", "zeros") and held:
        return sum(value * count for value, count in held) / sum(counts)
    if op in ("min", "max", "absmax") and not any(math.isnan(value) for value, _ in held):
        return (min if op == "min" else max)((value for value, _ in held), default=math.nan)
    return math.nan


def shape_of(text: str) -> list[int] | None:
    """The lengths in a text such as ``[2, 8]`` or ``(2, 8)``; ``None`` if it is no shape."""
    try:
        lengths = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    is_shape = isinstance(lengths, (list, tuple)) and all(isinstance(each, int) for each in lengths)
    return list(lengths) if is_shape else None


# --- run


_INTEGER_TYPES = ("int", "uint", "bool")


class MonitorRun:
    """Content of the files of a monitor.

    Args:
        located: The folders of the run.
        of_rank: The rows of each rank, by family.
        notes: Remarks on what was not read.
    """

    def __init__(self, located: Located, of_rank: Mapping[int, Mapping[str, Columns]], notes: Sequence[str]) -> None:
        self.path = located.path
        self.folders = {each.rank: each.path for each in located.folders}
        self.of_rank = of_rank
        self.notes = list(notes)
        self._steps: dict[int, dict[int, list[FamilyRows]]] = {}

    @property
    def ranks(self) -> list[int]:
        return sorted(self.of_rank)

    @property
    def steps(self) -> list[int]:
        """The steps of all ranks."""
        return sorted({step for families in self.of_rank.values() for each in families.values() for step in each.step})

    def rows(self, rank: int, step: int) -> list[FamilyRows]:
        """The rows of one rank in one step."""
        if rank not in self._steps:
            self._steps[rank] = _by_step(rank, self.of_rank.get(rank, {}).values())
        return self._steps[rank].get(step, [])

    def columns(self) -> dict[str, list[Any]]:
        """All rows as one table: a list for each column, with the same order in each run of the same training."""
        parts = [(rank, each) for rank in self.ranks for each in self.of_rank[rank].values()]
        statistics = list(dict.fromkeys(name for _, each in parts for name in each.statistics))
        texts = list(dict.fromkeys(name for _, each in parts for name in each.texts))
        names = ("rank", "step", "micro_step", "vpp_stage", "family", "name")
        found: dict[str, list[Any]] = {name: [] for name in (*names, *statistics, *texts)}
        for rank, each in parts:
            length = len(each)
            found["rank"] += [rank] * length
            found["step"] += each.step
            found["micro_step"] += each.micro
            found["vpp_stage"] += each.stage
            found["family"] += [each.family] * length
            found["name"] += each.name
            for name in statistics:
                found[name] += each.statistics.get(name, [math.nan] * length)
            for name in texts:
                found[name] += each.texts.get(name, [""] * length)
        return found


class Follower:
    """Reads the rows that a monitor adds to its files, which may still be written.

    Args:
        path: The output folder of the monitor.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.notes: list[str] = []
        self._positions: dict[str, int] = {}
        self._headers: dict[str, list[str]] = {}

    def read_on(self, is_last: bool = False) -> MonitorRun:
        """The rows of all ranks that were added since the last call.

        Args:
            is_last: Nothing is written any more: a row without an end is said to be incomplete.

        Raises:
            FileCheckException: the folder holds no rows yet.
        """
        located = locate(self.path)
        for note in located.notes:
            self._note(note)
        of_rank: dict[int, list[Columns]] = {}
        for folder in located.folders:
            of_rank.setdefault(folder.rank, []).extend(self.parts(folder, is_last))
        return MonitorRun(located, {rank: joined(parts) for rank, parts in of_rank.items()}, self.notes)

    def parts(self, folder: RankFolder, is_last: bool) -> Iterator[Columns]:
        """The rows of each file of a rank that were added."""
        for file in folder.files:
            yield from self._read_file(file, is_last)

    def _read_file(self, file: MonitorFile, is_last: bool) -> list[Columns]:
        begin = self._positions.get(file.path, 0)
        try:
            if os.stat(file.path).st_size <= begin:
                return []
            with files.open_for_reading(file.path) as stream:
                stream.seek(begin)
                content = stream.read()
        except OSError as error:
            self._note(f"{file.path} cannot be read: {error.strerror}.")
            return []
        # A last line without an end may be half of one; it is read next time.
        whole = content.rfind(b"\n") + 1
        if is_last and whole < len(content):
            self._note(f"{file.path}: the last row is incomplete and is left out.")
        self._positions[file.path] = begin + whole
        text = content[:whole].decode("utf-8", "replace")
        if not begin:
            self._headers[file.path] = text.partition("\n")[0].strip().split(",")
            return parse(file, text, self._note)
        return parse(file, text, self._note, self._headers[file.path])

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def read_monitor(path: str) -> MonitorRun:
    """Read the output folder of a monitor, or one folder of it: all ranks, both layouts, finished or still written.

    Raises:
        FileCheckException: it is no such folder, or no file of it can be read.
    """
    run = Follower(path).read_on(is_last=True)
    if not any(run.of_rank.values()):
        # The first note says why.
        raise FileCheckException(run.notes[0] if run.notes else f"{path} holds no rows of a monitor.")
    return run


def load_monitor(path: str, library: str | None = None, join_shards: bool = False) -> Any:
    """Read the files of a training monitor as one table.

    Args:
        path: The output folder of a monitor, or the folder of one rank. Of several runs the last one is read.
        library: ``polars`` or ``pandas``; ``dict`` gives a dict with a list for each column. By default the first
            of the libraries that is installed, or else a dict.
        join_shards: Make one row of the shards of a parameter, which ranks write each for itself. A statistic that does
            not follow from those of the shards is NaN.

    Returns:
        A table with the columns rank, step, micro_step, vpp_stage, family, name, the statistics, shape and dtype.

    Raises:
        MsprobeException: the folder holds no rows, or there is no such library.
        MissingDependency: the library is not installed.

    Example:
        ``load_monitor("./monitor_output", "pandas").query("family == 'grad_reduced'")``
    """
    try:
        chosen = "dict" if library == "dict" else installed_library(library)
    except MissingDependency:
        if library is not None:
            raise
        chosen = "dict"
    run = read_monitor(path)
    for note in run.notes:
        log.warning(note)
    columns = run.columns()
    if join_shards:
        columns = joined_shards(columns)
    return columns if chosen == "dict" else importlib.import_module(chosen).DataFrame(columns)


# --- the rows of a step


def _by_step(rank: int, families: Any) -> dict[int, list[FamilyRows]]:
    found: dict[int, list[FamilyRows]] = {}
    for columns in families:
        rows_of: dict[int, list[int]] = {}
        for row, step in enumerate(columns.step):
            rows_of.setdefault(step, []).append(row)
        ops = tuple(columns.statistics)
        values = np.array([columns.statistics[op] for op in ops], dtype=float).reshape(len(ops), len(columns)).T
        judged, numel, sketches = _judged(columns), _numel(columns), _sketches(columns)
        kept: dict[object, object] = {}
        for step, rows in rows_of.items():
            # Equal tuples are made one, by which judges know at once that rows are those of the last step.
            names = _same(kept, tuple([columns.name[row] for row in rows]))
            micro = _same(kept, tuple([columns.micro[row] for row in rows])) if columns.has_micro else None
            stages = _same(kept, tuple([columns.stage[row] for row in rows]))
            family = FamilyRows(
                columns.family, names, ops, values[rows], micro, stages,
                None if numel is None else numel[rows], judged[rows], None,
                None if sketches is None else sketches[rows], columns.decimals, columns.states_after, step, rank,
            )  # fmt: skip
            found.setdefault(step, []).append(family)
    return found


def _same(kept: dict[object, object], value: Any) -> Any:
    return kept.setdefault(value, value)


def _judged(columns: Columns) -> Flags:
    """False for rows of integers, and for missing gradients, which have no shape and no dtype."""
    dtypes = columns.texts.get("dtype")
    if dtypes is None:
        return np.ones(len(columns), dtype=np.bool_)
    known = {dtype: _is_float(dtype) for dtype in {*dtypes}}
    return np.array([known[dtype] for dtype in dtypes], dtype=np.bool_)


def _is_float(dtype: str) -> bool:
    name = dtype.rpartition(".")[2].lower()
    return name not in ("", "nan", FROZEN) and not name.startswith(_INTEGER_TYPES)


def _numel(columns: Columns) -> Floats | None:
    """The number of elements of each row; NaN where the text is no shape."""
    shapes = columns.texts.get("shape")
    if shapes is None:
        return None
    lengths = {text: shape_of(text) for text in {*shapes}}
    known = {text: math.nan if each is None else float(math.prod(each)) for text, each in lengths.items()}
    return np.array([known[text] for text in shapes])


def _sketches(columns: Columns) -> Floats | None:
    """The sums of the sketch of each row, shape (rows, 64); NaN where the text is none of this version."""
    texts = columns.texts.get(SKETCH)
    if texts is None:
        return None
    found = np.full((len(columns), LANES), np.nan)
    for row, text in enumerate(texts):
        try:
            content = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue
        if len(content) >= 1 + 4 * LANES and content[0] == VERSION:
            found[row] = np.frombuffer(content, "<f4", LANES, 1)
    return found


def folder_name(path: str) -> str:
    """The last part of a path, as runs are called in answers."""
    return os.path.basename(os.path.abspath(path))
