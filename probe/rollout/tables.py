"""``SingleComparator.compare`` and ``msprobe rollout_check --tables``: a workbook for each saved value."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Protocol

from probe.common import files, log
from probe.common.dump import naming
from probe.common.dump.reading.tensor_reading import read_tensor
from probe.common.errors import MsprobeException
from probe.common.parallel.run_tasks import run
from probe.common.parallel.tasks import Where, results
from probe.common.progress import ProgressCallback
from probe.common.report.xlsx import Sheet, load_openpyxl, write_xlsx
from probe.rollout.saved_folders import Position, SavedRun, SaveNumber, arrays_in, plain_values_in

Cell = Union[int, float, str, None]
Array = NDArray[Any]

NUMBERS = ("step", "rank", "micro_step", "id")
MEASURED = {
    "shape1": "shape1",
    "shape2": "shape2",
    "相同元素百分比(%)": "equal elements (%)",
    "首个不匹配元素索引": "index of the first mismatch",
    "最大绝对误差": "largest absolute error",
    "最大相对误差": "largest relative error",
    "误差在千分之一内元素占比(%)": "elements within 0.1 % (%)",
    "误差在百分之一内元素占比(%)": "elements within 1 % (%)",
}
"""The headings of msProbe, with ours in English."""
NOTE = {"备注": "note"}
_LIMITS = (0.001, 0.01)
_BLOCK = 1 << 18
"""Elements that are measured at once."""


class Row(NamedTuple):
    """The cells of one array, below the headings `MEASURED`, and a note."""

    cells: Sequence[Cell]
    note: str = ""
    differs: bool = False


class SavedTableRules(Protocol):
    """The rows of a table."""

    name: str
    has_notes: bool
    """True if the table has a column of notes, and rows for what one side lacks."""

    def positions(self, first: Mapping[Position, Any], second: Mapping[Position, Any]) -> Mapping[Position, Position]:
        """By the id of each row, the position in two values."""

    def row(self, first: Optional[Array], second: Optional[Array]) -> Row:  # noqa: UP045 (mypy on Python 3.9)
        """The row of an array; ``None`` for one that a side lacks."""


class ProbeTables:
    """Our rows: each position of either side; NaN equals NaN, and other shapes are not compared."""

    name = "probe"
    has_notes = True

    def positions(self, first: Mapping[Position, Any], second: Mapping[Position, Any]) -> Mapping[Position, Position]:
        """The positions of the first side, and then what the second alone has."""
        return {position: position for position in (*first, *second)}

    def row(self, first: Array | None, second: Array | None) -> Row:
        """Measure all elements in float64."""
        shapes = [None if side is None else shape_text(side) for side in (first, second)]
        if first is None or second is None:
            return Row((*shapes, *[None] * 6), f"only in dir{2 if first is None else 1}", True)
        if first.shape != second.shape:
            return Row((*shapes, *[None] * 6), "shapes differ: not compared", True)
        if (first.dtype.kind in "US") != (second.dtype.kind in "US"):
            return Row((*shapes, *[None] * 6), "numbers and texts: not compared", True)
        measured = measure(first, second)
        return Row((*shapes, *measured), "", measured[1] is not None)


PROBE_TABLES = ProbeTables()


def shape_text(array: Array) -> str:
    """``[2, 7]``."""
    return str(list(array.shape))


def measure(first: Array, second: Array) -> tuple[Cell, ...]:
    """Share of equal elements, first mismatch, largest absolute and relative error, shares within 0.1 % and 1 %.

    Args:
        first, second: Of one shape. The relative error refers to the larger absolute value of the two.

    Returns:
        Shares in percent; an index of ``None`` if nothing differs, and errors of ``None`` if the elements are texts.
    """
    first, second = first.reshape(-1), second.reshape(-1)
    if not first.size:
        return 100, None, 0, 0, 100, 100
    totals = _Totals()
    for start in range(0, first.size, _BLOCK):
        totals.add(first[start : start + _BLOCK], second[start : start + _BLOCK], start)
    return totals.cells(first.size)


_EXACT = 1 << 52
"""Integers up to here, and their differences, are exact in float64."""
_EDGES = ((np.max, 1), (np.min, -1))


class _Totals:
    def __init__(self) -> None:
        self._equal = 0
        self._within = [0] * len(_LIMITS)
        self._index: int | None = None
        self._absolute: float | None = 0.0
        self._relative: float | None = 0.0

    def add(self, first: Array, second: Array, start: int) -> None:
        same = first == second
        if first.dtype.kind in "fc" and second.dtype.kind in "fc":
            same |= np.isnan(first) & np.isnan(second)
        equal = int(np.count_nonzero(same))
        self._equal += equal
        if equal == same.size:
            self._within = [number + equal for number in self._within]
            return
        if self._index is None:
            self._index = start + int(np.argmin(same))
        if first.dtype.kind in "US":
            self._absolute = self._relative = None
            self._within = [number + equal for number in self._within]
            return
        absolute, relative = _errors(first[~same], second[~same])
        self._absolute = _larger(self._absolute, absolute)
        self._relative = _larger(self._relative, relative)
        for index, limit in enumerate(_LIMITS):
            self._within[index] += equal + int(np.count_nonzero(relative <= limit))

    def cells(self, size: int) -> tuple[Cell, ...]:
        shares = [100 * number / size for number in (self._equal, *self._within)]
        return shares[0], self._index, self._absolute, self._relative, *shares[1:]


def _errors(first: Array, second: Array) -> tuple[Array, Array]:
    """Absolute and relative errors of elements that differ; NaN on one side makes both of them NaN."""
    integers = first.dtype.kind in "iub" and second.dtype.kind in "iub"
    if integers and max(int(edge(side)) * sign for side in (first, second) for edge, sign in _EDGES) > _EXACT:
        # In Python's integers, of which no difference is rounded away.
        exact = [abs(int(a) - int(b)) for a, b in zip(first.tolist(), second.tolist())]
        absolute = np.array(exact, np.float64)
    else:
        wide = np.complex128 if "c" in (first.dtype.kind, second.dtype.kind) else np.float64
        with np.errstate(all="ignore"):
            absolute = np.abs(first.astype(wide) - second.astype(wide)).astype(np.float64)
    with np.errstate(all="ignore"):
        larger = np.fmax(*(np.abs(side.astype(np.complex128)) for side in (first, second)))
        # Of an infinity on one side alone it is infinite.
        return absolute, np.where(np.isinf(absolute), np.inf, absolute / larger)


def _larger(found: float | None, errors: Array) -> float:
    """The largest error, NaN if one is."""
    largest = float(errors.max())
    return largest if found is None or math.isnan(largest) or largest > found else found


# --- tables


HEADERS = ("msprobe", "english")
_MOST_SHOWN = 4
"""Values, and kinds of what is lacking, in a warning."""
_IN_PROCESSES = 256 << 20
"""Bytes of files from which starting processes pays: they take half a second, in which one process reads so many."""


@dataclass(frozen=True)
class KeyTable:
    """The table of one value."""

    key: str
    file: str
    arrays: int
    """Rows of the table."""
    differing: int
    """Rows of arrays that differ or that one side lacks."""
    one_side: str = ""
    """The saves that one side lacks, in words."""

    def line(self) -> str:
        """The table in one line."""
        if not self.arrays:
            return f"{self.key}: nothing was compared{'; ' if self.one_side else ''}{self.one_side}"
        text = f"{self.differing} of {self.arrays} arrays differ" if self.differing else "equal"
        return f"{self.key}: {text}; {self.one_side}" if self.one_side else f"{self.key}: {text}"


@dataclass(frozen=True)
class Tables:
    """The tables of two folders."""

    keys: Sequence[KeyTable]

    @property
    def found(self) -> bool:
        """True if something differs, or if one side lacks something."""
        return any(table.differing or table.one_side for table in self.keys)

    def lines(self) -> Iterator[str]:
        """One line for each value that differs, and one for all others."""
        equal = [table.key for table in self.keys if not table.differing and not table.one_side]
        yield from (table.line() for table in self.keys if table.differing or table.one_side)
        if equal:
            yield f"equal: {', '.join(equal)}"

    def as_json(self) -> dict[str, Any]:
        """The tables for programs."""
        return {
            "keys": [
                {"key": table.key, "arrays": table.arrays, "differing": table.differing, "missing": table.one_side}
                for table in self.keys
            ],
            "files": [table.file for table in self.keys],
        }


@dataclass(frozen=True)
class _Task:
    key: str
    first: SavedRun
    second: SavedRun
    output: str
    headers: str
    rules: SavedTableRules


def compare_saved(
    dir1: str,
    dir2: str,
    output_path: str,
    *,
    rules: SavedTableRules = PROBE_TABLES,
    headers: str = "msprobe",
    num_processes: int = 8,
    watch: ProgressCallback | None = None,
) -> Tables:
    """Compare what `SingleSave` wrote into two folders, and write a workbook for each value.

    Args:
        dir1: The folder of one program.
        dir2: The folder of the other one.
        output_path: The folder for the tables, which is made.
        rules: The rows of the tables.
        headers: ``msprobe`` for its headings, or ``english``.
        num_processes: At most so many processes; fewer, if the files are small.
        watch: A callback for how far the work is.

    Raises:
        MsprobeException: an argument is wrong, a folder has no saved values, or a file of them cannot be read.
        MissingDependency: openpyxl is not installed.
    """
    if headers not in HEADERS:
        raise MsprobeException(f"headers is {headers!r}; allowed: {', '.join(HEADERS)}.")
    if isinstance(num_processes, bool) or not isinstance(num_processes, int) or num_processes < 1:
        raise MsprobeException(f"num_processes is {num_processes!r}; allowed: an integer from 1.")
    load_openpyxl()
    first, second = SavedRun(dir1), SavedRun(dir2)
    files.make_folder(output_path)
    keys = sorted({*first.keys(), *second.keys()})
    tasks = [_Task(key, first, second, output_path, headers, rules) for key in keys]
    jobs = num_processes if _is_large((first, second), _IN_PROCESSES) else 1
    tables = Tables(list(results(tasks, run(Where(jobs), _write_table, tasks, watch))))
    if rules.has_notes:
        lacking: dict[str, list[str]] = {}
        for table in tables.keys:
            if table.one_side:
                lacking.setdefault(table.one_side, []).append(table.key)
        if lacking:
            log.warning(f"Saves without a counterpart: {_lacking_text(lacking)}.")
    return tables


def _lacking_text(lacking: dict[str, list[str]]) -> str:
    """The saves that each side lacks, with the values that lack the same, in one line."""
    shown = [f"{text} of {_first_of(keys, ', ')}" for text, keys in lacking.items()]
    return _first_of(shown, "; ")


def _first_of(texts: Sequence[str], between: str) -> str:
    more = len(texts) - _MOST_SHOWN
    return between.join(texts[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_large(runs: Sequence[SavedRun], limit: int) -> bool:
    size = 0
    for saved in runs:
        for folder, _, names in os.walk(saved.path):
            size += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
            if size > limit:
                return True
    return False


@dataclass
class _Rows:
    """The rows of a table while they are made."""

    task: _Task
    arrays: int = 0
    differing: int = 0
    missing: tuple[list[SaveNumber], list[SaveNumber]] = field(default_factory=lambda: ([], []))

    def __iter__(self) -> Iterator[Sequence[Cell]]:
        task = self.task
        names = MEASURED if task.headers == "msprobe" else MEASURED.values()
        notes = () if not task.rules.has_notes else NOTE if task.headers == "msprobe" else NOTE.values()
        yield (*NUMBERS, *names, *notes)
        first, second = task.first.saves(task.key), task.second.saves(task.key)
        for number in sorted({*first, *second}, key=lambda number: (number.step, str(number.rank), number.micro_step)):
            sides = first.get(number), second.get(number)
            for side, folder in enumerate(sides):
                if folder is None:
                    self.missing[side].append(number)
            if task.rules.has_notes or None not in sides:
                yield from self._save_rows(number, *sides)

    def _save_rows(self, number: SaveNumber, first: str | None, second: str | None) -> Iterator[Sequence[Cell]]:
        task = self.task
        sides = [_values(folder, task.key, task.rules.has_notes) for folder in (first, second)]
        for name, position in task.rules.positions(*sides).items():
            row = task.rules.row(*(_read(side.get(position)) for side in sides))
            self.arrays += 1
            self.differing += row.differs
            notes = (row.note,) if task.rules.has_notes else ()
            yield (*number, name, *row.cells, *notes)


def _values(folder: str | None, key: str, with_plain: bool) -> dict[Position, Any]:
    if folder is None:
        return {}
    arrays: dict[Position, Any] = dict(arrays_in(folder, key))
    plain = plain_values_in(folder, key) if with_plain else {}
    return {**arrays, **{position: np.asarray(_as_value(value)) for position, value in plain.items()}}


def _as_value(value: Any) -> Any:
    # Of a type that numpy has; an integer above 64 bits as its digits.
    is_number = isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 63)
    return value if is_number else str(value)


def _read(value: Any) -> Array | None:
    return read_tensor(value, mapped=True) if isinstance(value, str) else value


def _write_table(task: _Task) -> KeyTable:
    rows = _Rows(task)
    path = os.path.join(task.output, naming.file_name(task.key, ".xlsx"))
    write_xlsx(path, [Sheet("values", rows)])
    sides = zip((task.first, task.second), rows.missing)
    lacking = "; ".join(f"{saved.path} lacks {_in_words(numbers)}" for saved, numbers in sides if numbers)
    return KeyTable(task.key, path, rows.arrays, rows.differing, lacking)


def _in_words(numbers: Sequence[SaveNumber]) -> str:
    step, rank, micro_step = numbers[0]
    begin = f"step {step}, rank {rank}, micro step {micro_step}"
    return begin if len(numbers) == 1 else f"{len(numbers)} saves of it, the first one {begin}"
