"""The rows of one CSV file of a monitor, as columns; a torn last row is left out."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.common.errors import FileCheckException
from probe.common.report.csv_lines import unharmed
from probe.common.report.trends import SKETCH
from probe.monitor.tables import FOLDER, SCOPES

FIRST, SECOND = "TrainerMon", "TrainerMonitorV2"

_FIRST_FILE = re.compile(r"(?P<family>[A-Za-z]\w*?)_(?P<first>\d+)-\d+\.csv")
_SECOND_FILE = re.compile(r"(?P<family>[a-z]\w*?)_step(?P<first>\d+)-\d+\.csv")
_RANK_FOLDER = re.compile(r"rank_?(?P<rank>\d+)")
_DEEPEST = 4
"""Levels below the folder that is given; a monitor writes one."""


@dataclass(frozen=True)
class MonitorFile:
    """One file of rows."""

    path: str
    layout: str
    family: str
    """The family as in its name: ``actv``, or ``module`` of the second monitor."""
    first: int
    """The first step that it may hold."""


@dataclass
class RankFolder:
    """The folder of one rank."""

    path: str
    rank: int
    files: list[MonitorFile] = field(default_factory=list)
    time: str = ""
    run: str = ""


@dataclass(frozen=True)
class Located:
    """The folders of one run, and remarks on what is not read."""

    path: str
    folders: list[RankFolder]
    notes: list[str]


def file_of(path: str) -> MonitorFile | None:
    """The file of rows that a path is by its name; ``None`` if it is none."""
    name = os.path.basename(path)
    for layout, pattern in ((SECOND, _SECOND_FILE), (FIRST, _FIRST_FILE)):
        match = pattern.fullmatch(name)
        if match:
            return MonitorFile(path, layout, match["family"], int(match["first"]))
    return None


def folders_of(path: str) -> list[RankFolder]:
    """The folders with rows at or below a path, those of all runs."""
    found = []
    for folder in _walk(path, _DEEPEST):
        files = [each for entry in _entries(folder) if entry.is_file() and (each := file_of(entry.path))]
        if not files:
            continue
        name = os.path.basename(os.path.abspath(folder))
        match = FOLDER.fullmatch(name) or _RANK_FOLDER.fullmatch(name)
        parts = match.groupdict() if match else {}
        found.append(
            RankFolder(
                folder,
                int(parts.get("rank", 0)),
                sorted(files, key=lambda each: (each.first, each.family)),
                parts.get("time", ""),
                parts.get("run", ""),
            )
        )
    return found


def locate(path: str) -> Located:
    """The folders of the run at a path; of several runs the last one.

    Raises:
        FileCheckException: there is no such folder, or it holds no rows of a monitor.
    """
    if not os.path.isdir(path):
        what = "is a file" if os.path.exists(path) else "does not exist"
        raise FileCheckException(f"{path} {what}; give the output folder of a monitor, such as ./monitor_output.")
    folders = folders_of(path)
    if not folders:
        raise FileCheckException(
            f"{path} holds no rows of a monitor; expected files such as actv_0-0.csv or module_step0-0.csv in a folder "
            "for each rank."
        )
    runs = _runs(folders)
    notes = []
    if len(runs) > 1:
        left = ", ".join(_run_name(run) for run in runs[:-1][-3:])
        notes.append(f"{path} holds {len(runs)} runs; the last one is read ({_run_name(runs[-1])}), not {left}.")
    return Located(path, sorted(runs[-1], key=lambda each: each.rank), notes)


def _runs(folders: list[RankFolder]) -> list[list[RankFolder]]:
    """Folders of one run: those with one id or one parent, as long as each rank occurs once."""
    ids: dict[tuple[str, str], list[RankFolder]] = {}
    for each in folders:
        parent = os.path.dirname(os.path.abspath(each.path))
        ids.setdefault((parent, each.run), []).append(each)
    groups = sorted(ids.items(), key=lambda item: max(_age(each) for each in item[1]))
    runs: list[tuple[str, list[RankFolder]]] = []
    for (parent, run), group in groups:
        # msProbe gives each rank a random id: such folders belong together until a rank occurs again.
        if runs and run and runs[-1][0] == parent and not _share_ranks(runs[-1][1], group):
            runs[-1][1].extend(group)
        else:
            runs.append((parent, list(group)))
    return [folders for _, folders in runs]


def _share_ranks(one: list[RankFolder], other: list[RankFolder]) -> bool:
    return not {each.rank for each in one}.isdisjoint(each.rank for each in other)


def _age(folder: RankFolder) -> float:
    try:
        return min(os.stat(each.path).st_mtime for each in folder.files)
    except OSError:
        return 0.0


def _run_name(folders: list[RankFolder]) -> str:
    return os.path.basename(os.path.abspath(min(folders, key=lambda each: each.rank).path))


def _walk(path: str, depth: int) -> Iterator[str]:
    yield path
    if depth:
        for entry in _entries(path):
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, depth - 1)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda each: each.name)
    except OSError:
        return []


# --- csv rows


_TEXTS = ("shape", "dtype", "placement", SKETCH)
_INTEGERS = ("vpp_stage", "step", "micro_step")
_NAMES = {FIRST: "name", SECOND: "module_name"}
_WORDS = {"True": "1", "False": "0", "": "nan", "None": "nan"}
_FAMILIES = {each.scope: family for family, each in SCOPES.items()}
"""Families by the scope of the second monitor, which is the name of the others."""
_NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?:e([+-]?\d+))?")
_MOST_DECIMALS = 12
"""Numbers that have no more decimals than this are rounded: exact ones have 16 digits."""
_SAMPLED = 2000
"""Cells by which a column's form is told; a guess."""


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

    def of_family(self, family: str, rows: list[int]) -> Columns:
        """Some of the rows, as those of one family."""

        def taken(values: Sequence[Any]) -> list[Any]:
            return [values[row] for row in rows]

        # The second monitor repeats the family in the name: ``head.weight.exp_avg``.
        end = f".{family}"
        names = [name[: -len(end)] if name.endswith(end) else name for name in taken(self.name)]
        statistics = {name: taken(values) for name, values in self.statistics.items()}
        texts = {name: taken(values) for name, values in self.texts.items()}
        return Columns(
            family, names, taken(self.step), taken(self.micro), taken(self.stage), self.has_micro, statistics, texts,
            self.decimals, self.states_after,
        )  # fmt: skip

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


def joined(parts: Iterable[Columns]) -> dict[str, Columns]:
    """The rows of several files, by family."""
    found: dict[str, Columns] = {}
    for each in parts:
        if each.family in found:
            found[each.family].add(each)
        else:
            found[each.family] = each
    return found


def parse(file: MonitorFile, content: str, note: Callable[[str], None], header: Sequence[str] = ()) -> list[Columns]:
    """The families in whole lines of a file.

    Args:
        note: Gets remarks on what is left out; a file with other columns than a monitor writes is left out as a whole.
        header: The first line of the file, if it is not the first one of `content`.
    """
    # The default is 131,072 characters, fewer than a name or a stack may have.
    csv.field_size_limit(sys.maxsize)
    lines = csv.reader(io.StringIO(content, newline=""))
    try:
        rows = [row for row in lines if row]
    except csv.Error as error:
        note(f"{file.path}: line {lines.line_num} is no line of a table: {error}.")
        return []
    if not header and rows:
        header, *rows = rows
    if not header:
        return []
    missing = [column for column in (_NAMES[file.layout], "step") if column not in header]
    if missing:
        note(f"{file.path} has no column {' and no column '.join(missing)}; it is of another version, and is not read.")
        return []
    good = [row for row in rows if len(row) == len(header)]
    if len(good) < len(rows):
        note(f"{file.path}: {len(rows) - len(good)} rows have another number of columns and are left out.")
    cells: dict[str, tuple[str, ...]] = dict.fromkeys(header, ())
    if good:
        cells.update(zip(header, zip(*good)))
    found = _table(file, cells, len(good))
    if found is None:
        note(f"{file.path}: column step has a value that is no whole number of 64 bits; the file is not read.")
        return []
    rows_of: dict[str, list[int]] = {}
    for at, family in enumerate(_family_of_rows(file, cells, len(good))):
        rows_of.setdefault(family, []).append(at)
    families = [found.of_family(family, at) for family, at in rows_of.items()]
    for each in families:
        _number_repeats(each)
    return families


def _table(file: MonitorFile, cells: dict[str, tuple[str, ...]], length: int) -> Columns | None:
    """All rows of a file; ``None`` if their steps are no numbers."""
    name_column = _NAMES[file.layout]
    steps = _integers(cells["step"])
    if steps is None:
        return None
    stages, micros = (_integers(cells.get(column, ())) or [0] * length for column in ("vpp_stage", "micro_step"))
    found = Columns(
        file.family, [unharmed(name) for name in cells[name_column]], steps, micros,
        [max(stage, 0) for stage in stages], bool(cells.get("micro_step")), states_after=file.layout != FIRST,
    )  # fmt: skip
    places = 0
    for column, values in cells.items():
        if column in (name_column, "scope", *_INTEGERS):
            continue
        numbers = None if column in _TEXTS else _numbers(values)
        if numbers is None:
            found.texts[column] = list(values)
        else:
            found.statistics[column] = numbers
            places = max(places, _decimals(values))
    found.decimals = places if places <= _MOST_DECIMALS else None
    return found


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


def _family_of_rows(file: MonitorFile, columns: dict[str, tuple[str, ...]], length: int) -> Sequence[str]:
    scopes = columns.get("scope")
    if file.layout == FIRST or not scopes:
        return [file.family] * length
    return [_FAMILIES.get(scope, scope) for scope in scopes]


def _integers(cells: Sequence[str]) -> list[int] | None:
    """Whole numbers, 0 for a cell without one; ``None`` if a cell has something else.

    Numbers of more than 64 bits, which no database has, are something else.
    """
    try:
        found = [int(cell) for cell in cells]
    except ValueError:
        try:
            found = [0 if cell in ("", "nan") else int(float(cell)) for cell in cells]
        except (ValueError, OverflowError):
            return None
    return found if all(-(1 << 63) <= each < 1 << 63 for each in {*found}) else None


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
