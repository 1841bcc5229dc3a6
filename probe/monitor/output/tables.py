"""Rows of steps as CSV files, in the layouts of both monitors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO, NamedTuple

from typing_extensions import Protocol

from probe.common import log
from probe.common.files import make_folder, open_for_reading, open_for_writing
from probe.common.report.cells import harmless
from probe.common.report.trends import (
    ACTIVATION,
    ACTIVATION_GRADIENT,
    AFTER,
    BEFORE,
    COMMUNICATION,
    COURSE,
    REDUCED,
    START,
    UNREDUCED,
    TrendRow,
    TrendStep,
    TrendTable,
)

_NAN = "nan"


class File(NamedTuple):
    """Lines for one file."""

    name: str
    header: str
    lines: list[str]


class Layout(Protocol):
    """The way in which rows become lines of files."""

    def files(self, step: TrendStep) -> Iterable[File]:
        """The lines of a step, by file."""


def _quoted(text: str) -> str:
    text = harmless(text)
    if any(character in text for character in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def number_text(digits: int | None) -> Callable[[float], str]:
    """The function that writes a number: exactly, or rounded to so many decimals."""
    if digits is None:
        return repr

    def rounded(value: float) -> str:
        return repr(round(value, digits)) if value == value else _NAN

    return rounded


class FirstLayout:
    """The files of `TrainerMon`: one for each family, ``actv_0-9.csv``.

    Args:
        steps: The number of steps of a file; one begins at each multiple of it.
        digits: The number of decimals; ``None`` for numbers as they are.
    """

    def __init__(self, steps: int, digits: int | None) -> None:
        self._steps = steps
        self._number = number_text(digits)
        self._headers: dict[tuple[str, ...], str] = {}
        self._tails: dict[tuple[str, str], str] = {}
        self._heads: dict[tuple[str, int], str] = {}

    def files(self, step: TrendStep) -> Iterable[File]:
        """One file for each family."""
        first = step.number // self._steps * self._steps
        for table in step.tables:
            name = f"{table.family}_{first}-{first + self._steps - 1}.csv"
            yield File(name, self._header(table), self._lines(step.number, table))

    def _header(self, table: TrendTable) -> str:
        columns = ["vpp_stage", "name", "step"]
        columns += ["micro_step"] if table.has_micro else []
        columns += table.ops
        columns += ["shape", "dtype"] if table.has_shape else []
        return ",".join([*columns, *table.more]) + "\n"

    def _lines(self, step: int, table: TrendTable) -> list[str]:
        number, has_micro, has_shape = self._number, table.has_micro, table.has_shape
        heads, tails = self._heads, self._tails
        missing = ",".join([_NAN] * len(table.ops))
        lines = []
        for row in table.rows:
            head = heads.get(row[:2]) or self._head(row)
            values = missing if row.values is None else ",".join(map(number, row.values))
            text = f"{head}{step},{row.micro},{values}" if has_micro else f"{head}{step},{values}"
            if has_shape:
                tail = tails.get(row[4:6])
                text += self._tail(row) if tail is None else tail
            if table.more:
                text = ",".join((text, *map(_quoted, row.more)))
            lines.append(text + "\n")
        return lines

    def _head(self, row: TrendRow) -> str:
        text = self._heads[row[:2]] = f"{row.chunk},{_quoted(row.name)},"
        return text

    def _tail(self, row: TrendRow) -> str:
        text = f",{_quoted(row.shape) or _NAN},{row.dtype or _NAN}"
        self._tails[row[4:6]] = text
        return text


class _Scope(NamedTuple):
    file: str
    scope: str


_SCOPES = {
    ACTIVATION: _Scope("module", "forward"),
    ACTIVATION_GRADIENT: _Scope("module", "backward"),
    UNREDUCED: _Scope("weight_grad", "unreduced"),
    REDUCED: _Scope("weight_grad", "reduced"),
    BEFORE: _Scope("param", BEFORE),
    AFTER: _Scope("param", AFTER),
    COMMUNICATION: _Scope("cc", "comm"),
    COURSE: _Scope(COURSE, COURSE),
    START: _Scope(START, START),
}


class SecondLayout:
    """The files of `TrainerMonitorV2`: one for each of its monitors, ``module_step0-9.csv``.

    Args:
        start: The first collected step, from which files are counted.
        steps: The number of steps of a file.
        has_chunks: False if there is one model, whose ``vpp_stage`` is -1.
        each_micro_batch: True if unreduced gradients of each micro batch are collected.
        rank: For the names of communication.
    """

    def __init__(self, start: int, steps: int, has_chunks: bool, each_micro_batch: bool, rank: int) -> None:
        self._start = start
        self._steps = steps
        self._has_chunks = has_chunks
        self._each = each_micro_batch
        self._rank = rank

    def files(self, step: TrendStep) -> Iterable[File]:
        """The lines of each monitor."""
        first = self._start + max(step.number - self._start, 0) // self._steps * self._steps
        found: dict[str, File] = {}
        for table in step.tables:
            place = _SCOPES.get(table.family) or _Scope("optimizer", table.family)
            file = found.get(place.file)
            if file is None:
                name = f"{place.file}_step{first}-{first + self._steps - 1}.csv"
                file = found[place.file] = File(name, self._header(place, table), [])
            file.lines.extend(self._lines(step, place, table))
        return found.values()

    def _header(self, place: _Scope, table: TrendTable) -> str:
        columns = ["vpp_stage", "step", "module_name", "scope"]
        columns += ["micro_step"] if place.file == "weight_grad" else []
        return ",".join([*columns, *table.ops]) + "\n"

    def _lines(self, step: TrendStep, place: _Scope, table: TrendTable) -> Iterable[str]:
        is_state = place.file == "optimizer"
        rows: Sequence[TrendRow] = table.rows
        for row in rows:
            if row.values is None:
                continue
            chunk = "" if place.file == "cc" else str(row.chunk) if self._has_chunks else "-1"
            name = f"{row.name}.{table.family}" if is_state else row.name
            if place.file == "cc":
                name = f"{row.name}/rank{self._rank}/{row.more[1]}_{row.more[0]}"
            text = f"{chunk},{step.number},{_quoted(name)},{place.scope},"
            if place.file == "weight_grad":
                is_each = self._each and table.family == UNREDUCED
                text += f"{row.micro + 1 if is_each else max(step.micro_batches, 1)},"
            yield text + ",".join([repr(float(each)) for each in row.values]) + "\n"


class TableFiles:
    """Appends the lines of each step to its files, so that a killed process keeps every step that it has ended.

    Args:
        folder: The folder of the files.
        layout: Makes lines of rows.
    """

    def __init__(self, folder: str, layout: Layout) -> None:
        self._folder = folder
        self._layout = layout
        self._open: dict[str, BinaryIO] = {}
        """By name, the files of the last step."""
        self._lost = 0
        self._has_folder = False

    def write(self, step: TrendStep) -> None:
        """Write one step."""
        try:
            self._write(step)
        except OSError as error:
            self._lost += 1
            self._close()
            reason = error.strerror or str(error)
            text = f"The rows of step {step.number} could not be written to {self._folder}: {reason}"
            log.warning(f"{text}. The training goes on.", once=f"monitor files {reason}")

    def _write(self, step: TrendStep) -> None:
        if not self._has_folder:
            make_folder(self._folder)
            self._has_folder = True
        before, self._open = self._open, {}
        try:
            for file in self._layout.files(step):
                stream = before.pop(file.name, None)
                text = "".join(file.lines)
                if stream is None:
                    path = os.path.join(self._folder, file.name)
                    stream = open_for_writing(path, append=True)
                    # A process that was killed, or a full disk, may have left a line without an end.
                    text = _before(path) + text if os.fstat(stream.fileno()).st_size else file.header + text
                self._open[file.name] = stream
                data = memoryview(text.encode())
                while data:
                    # A disk that is nearly full takes a part.
                    data = data[stream.write(data) :]
        finally:
            for stream in before.values():
                stream.close()

    def _close(self) -> None:
        opened, self._open = self._open, {}
        with contextlib.ExitStack() as each:
            # The others are closed as well if one of them fails.
            for stream in opened.values():
                each.callback(stream.close)

    def close(self) -> None:
        """Close every file, and say what was lost."""
        self._close()
        if self._lost:
            log.warning(f"{self._lost} steps of the monitor could not be written to {self._folder}.")
            self._lost = 0


def _before(path: str) -> str:
    """A line break, if the last line of a file that is not empty has none."""
    with open_for_reading(path) as stream:
        stream.seek(-1, os.SEEK_END)
        return "" if stream.read(1) == b"\n" else "\n"
