"""The rows of one CSV file of a monitor, as columns; a torn last row is left out."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from probe.common import files
from probe.common.report.cells import unharmed
from probe.monitor.reading.locating import FIRST, MonitorFile

_TEXTS = ("shape", "dtype", "placement")
_INTEGERS = ("vpp_stage", "step", "micro_step")
_NAMES = {FIRST: "name"}
_NAME_OF_SECOND = "module_name"
_WORDS = {"True": "1", "False": "0", "": "nan", "None": "nan"}
_SCOPES = {"forward": "actv", "backward": "actv_grad", "reduced": "grad_reduced", "unreduced": "grad_unreduced"}
_NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?:e([+-]?\d+))?")
_MOST_DECIMALS = 12
"""Numbers that have no more decimals than this are rounded: exact ones have 16 digits."""
_SAMPLED = 2000

Integers = NDArray[np.int64]


@dataclass
class Columns:
    """Rows of one family of one rank, in the order of the files."""

    family: str
    name: list[str] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    micro: list[int] = field(default_factory=list)
    stage: list[int] = field(default_factory=list)
    has_micro: bool = False
    statistics: dict[str, list[float]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    decimals: int | None = None
    """The number of decimals of the values, if they are rounded."""
    states_after: bool = False
    """See `probe.monitor.alerts.rows.FamilyRows`."""

    def __len__(self) -> int:
        return len(self.name)

    def add(self, other: Columns) -> None:
        """Append the rows of another file; columns that one of them lacks are NaN or empty there."""
        before, after = len(self), len(other)
        for name in {*self.statistics, *other.statistics}:
            mine = self.statistics.setdefault(name, [np.nan] * before)
            mine += other.statistics.get(name, [np.nan] * after)
        for name in {*self.texts, *other.texts}:
            texts = self.texts.setdefault(name, [""] * before)
            texts += other.texts.get(name, [""] * after)
        self.name += other.name
        self.step += other.step
        self.micro += other.micro
        self.stage += other.stage
        self.has_micro |= other.has_micro
        if after:
            # A file of exact numbers may by chance have few digits.
            known = self.decimals if before else other.decimals
            self.decimals = None if known is None or other.decimals is None else max(known, other.decimals)


@dataclass(frozen=True)
class ReadFile:
    """The families of one file, and remarks."""

    families: list[Columns]
    notes: list[str]
    size: int
    """Bytes that were read as whole rows, for who reads on."""


def read_file(file: MonitorFile) -> ReadFile:
    """Read one file.

    A file with other columns than a monitor writes is left out, and a note says so.
    """
    try:
        with files.open_for_reading(file.path) as stream:
            content = stream.read()
    except OSError as error:
        return ReadFile([], [f"{file.path} cannot be read: {error.strerror}."], 0)
    return parse(file, content)


def parse(file: MonitorFile, content: bytes, header: Sequence[str] | None = None) -> ReadFile:
    """The rows in the content of a file, or in a part of it that follows a header that is known."""
    whole = content.rfind(b"\n") + 1
    notes = []
    # A last line without an end may be half of one.
    if whole < len(content):
        notes.append(f"{file.path}: the last row is incomplete and is left out.")
    # The default is 131,072 characters, fewer than a name or a stack may have.
    csv.field_size_limit(sys.maxsize)
    lines = csv.reader(io.StringIO(content[:whole].decode("utf-8", "replace"), newline=""))
    try:
        rows = [row for row in lines if row]
    except csv.Error as error:
        return ReadFile([], [*notes, f"{file.path}: line {lines.line_num} is no line of a table: {error}."], whole)
    if header is None:
        if not rows:
            return ReadFile([], notes, whole)
        header, rows = rows[0], rows[1:]
    name_column = _NAMES.get(file.layout, _NAME_OF_SECOND)
    missing = [column for column in (name_column, "step") if column not in header]
    if missing:
        notes.append(
            f"{file.path} has no column {' and no column '.join(missing)}; it is of another version, and is not read."
        )
        return ReadFile([], notes, whole)
    good = [row for row in rows if len(row) == len(header)]
    if len(good) < len(rows):
        notes.append(f"{file.path}: {len(rows) - len(good)} rows have another number of columns and are left out.")
    return _columns(file, list(header), good, notes, whole)


def _columns(file: MonitorFile, header: list[str], rows: list[list[str]], notes: list[str], whole: int) -> ReadFile:
    columns: dict[str, tuple[str, ...]] = dict.fromkeys(header, ())
    if rows:
        columns.update(zip(header, zip(*rows)))
    steps, steps_ok = _integers(columns["step"])
    if not steps_ok:
        notes.append(f"{file.path}: column step has a value that is no whole number of 64 bits; the file is not read.")
        return ReadFile([], notes, whole)
    name_column = _NAMES.get(file.layout, _NAME_OF_SECOND)
    stages, _ = _integers(columns.get("vpp_stage", ()))
    micros, _ = _integers(columns.get("micro_step", ()))
    families = _family_of_rows(file, columns, len(rows))
    names = [unharmed(name) for name in columns[name_column]]
    statistics: dict[str, list[float]] = {}
    texts: dict[str, list[str]] = {}
    places = 0
    for column in header:
        if column in (name_column, "scope", *_INTEGERS):
            continue
        cells = columns[column]
        numbers = None if column in _TEXTS else _numbers(cells)
        if numbers is None:
            texts[column] = list(cells)
            continue
        statistics[column] = numbers
        places = max(places, _decimals(cells))
    decimals = places if places <= _MOST_DECIMALS else None
    is_second = file.layout != FIRST
    split = _split(families, names, steps, micros, stages, statistics, texts, decimals, is_second)
    return ReadFile(split, notes, whole)


def _split(
    families: list[str], names: Sequence[str], steps: list[int], micros: list[int], stages: list[int],
    statistics: dict[str, list[float]], texts: dict[str, list[str]], decimals: int | None, is_second: bool,
) -> list[Columns]:  # fmt: skip
    """The rows of each family."""
    found: dict[str, Columns] = {}
    rows_of: dict[str, list[int]] = {}
    for row, family in enumerate(families):
        rows_of.setdefault(family, []).append(row)
    for family, rows in rows_of.items():
        # The second monitor repeats the family in the name: ``head.weight.exp_avg``.
        end = f".{family}"
        of_rows = [names[row] for row in rows]
        found[family] = Columns(
            family,
            [name[: -len(end)] if name.endswith(end) else name for name in of_rows],
            [steps[row] for row in rows],
            [micros[row] for row in rows] if micros else [0] * len(rows),
            [max(stages[row], 0) for row in rows] if stages else [0] * len(rows),
            bool(micros),
            {name: [values[row] for row in rows] for name, values in statistics.items()},
            {name: [values[row] for row in rows] for name, values in texts.items()},
            decimals,
            is_second,
        )
    for each in found.values():
        _number_repeats(each)
    return list(found.values())


def _number_repeats(columns: Columns) -> None:
    """Number rows of equal names in one step, where the file does not: the second monitor's micro batches."""
    if columns.has_micro:
        return
    seen: dict[tuple[int, str, int], int] = {}
    for row, key in enumerate(zip(columns.step, columns.name, columns.stage)):
        again = seen[key] = seen.get(key, -1) + 1
        if again:
            columns.micro[row] = again
            columns.has_micro = True


def _family_of_rows(file: MonitorFile, columns: dict[str, tuple[str, ...]], length: int) -> list[str]:
    if file.layout == FIRST:
        return [file.family] * length
    scopes = columns.get("scope", ())
    if file.family == "cc" or not scopes:
        return ["comm" if file.family == "cc" else file.family] * length
    return [_SCOPES.get(scope, scope) for scope in scopes]


def _integers(cells: Sequence[str]) -> tuple[list[int], bool]:
    """Whole numbers, and true if all cells hold some; more than 64 bits, which no database has, are none."""
    try:
        found = [int(cell) for cell in cells]
    except ValueError:
        found = []
        for cell in cells:
            try:
                found.append(int(float(cell)))
            except (ValueError, OverflowError):
                if cell not in ("", "nan"):
                    return [0] * len(cells), False
                found.append(0)
    if any(not -(1 << 63) <= each < 1 << 63 for each in {*found}):
        return [0] * len(cells), False
    return found, True


def _numbers(cells: Sequence[str]) -> list[float] | None:
    """The numbers of a column; ``None`` if it has texts."""
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        pass
    try:
        return [float(_WORDS.get(cell, cell)) for cell in cells]
    except ValueError:
        return None


def _decimals(cells: Sequence[str]) -> int:
    """The largest number of decimals of the first numbers of a column."""
    most = 0
    for cell in cells[:_SAMPLED]:
        match = _NUMBER.fullmatch(cell)
        if match is not None:
            most = max(most, len(match[1] or "") - int(match[2] or 0))
    return most
