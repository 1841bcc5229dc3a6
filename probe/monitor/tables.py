"""Rows of steps as CSV files, in the layouts of both monitors."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from probe.common import clock, log
from probe.common.files import make_folder, open_for_reading, open_for_writing, replacing
from probe.common.report.csv_lines import harmless, number_texts
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


Layout = Callable[[TrendStep], Iterable[File]]
"""The lines of a step, by file."""


def _quoted(text: str) -> str:
    text = harmless(text)
    if any(character in text for character in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _value_texts(table: TrendTable, digits: int | None) -> list[str]:
    """The values of each row of a table, with commas between them.

    Args:
        digits: The number of decimals that they are rounded to; ``None`` for numbers as they are.
    """
    values = [row.values for row in table.rows]
    known = [each for each in values if each is not None]
    if digits is not None:
        known = [[round(value, digits) for value in each] for each in known]
    texts = number_texts(known)
    if len(texts) == len(values):
        return texts
    missing, ahead = ",".join([_NAN] * len(table.ops)), iter(texts)
    return [missing if each is None else next(ahead) for each in values]


class _Line(NamedTuple):
    """The parts of a line that are the same in each step: what stands before the step, after it, and at the end."""

    head: str
    micro: str
    tail: str


def first_layout(steps: int, digits: int | None) -> Layout:
    """The files of `TrainerMon`: one for each family, ``actv_0-9.csv``.

    Args:
        steps: The number of steps of a file; one begins at each multiple of it.
        digits: The number of decimals; ``None`` for numbers as they are.
    """
    known: dict[str, tuple[list[tuple[Any, ...]], list[_Line]]] = {}
    """By family, what makes the lines of the last step, and their parts."""

    def parts_of(table: TrendTable) -> list[_Line]:
        # A step mostly has the rows of the step before.
        keys = [row[:3] + row[4:6] for row in table.rows]
        last = known.get(table.family)
        if last is not None and last[0] == keys:
            return last[1]
        parts = [
            _Line(
                f"{row.chunk},{_quoted(row.name)},",
                f",{row.micro}," if table.has_micro else ",",
                f",{_quoted(row.shape) or _NAN},{row.dtype or _NAN}" if table.has_shape else "",
            )
            for row in table.rows
        ]
        known[table.family] = keys, parts
        return parts

    def lines_of(step: int, table: TrendTable) -> list[str]:
        texts, parts = _value_texts(table, digits), parts_of(table)
        if not table.more:
            return [f"{head}{step}{micro}{values}{tail}\n" for (head, micro, tail), values in zip(parts, texts)]
        return [
            f"{','.join((f'{head}{step}{micro}{values}{tail}', *map(_quoted, row.more)))}\n"
            for row, (head, micro, tail), values in zip(table.rows, parts, texts)
        ]

    def files(step: TrendStep) -> Iterator[File]:
        first = step.number // steps * steps
        for table in step.tables:
            micro, shape = ["micro_step"] if table.has_micro else [], ["shape", "dtype"] if table.has_shape else []
            columns = ["vpp_stage", "name", "step", *micro, *table.ops, *shape, *table.more]
            name = f"{table.family}_{first}-{first + steps - 1}.csv"
            yield File(name, ",".join(columns) + "\n", lines_of(step.number, table))

    return files


class Scope(NamedTuple):
    """The file of the second monitor that has the rows of a family, without its steps, and their scope."""

    file: str
    scope: str


SCOPES = {
    ACTIVATION: Scope("module", "forward"),
    ACTIVATION_GRADIENT: Scope("module", "backward"),
    UNREDUCED: Scope("weight_grad", "unreduced"),
    REDUCED: Scope("weight_grad", "reduced"),
    BEFORE: Scope("param", BEFORE),
    AFTER: Scope("param", AFTER),
    COMMUNICATION: Scope("cc", "comm"),
    COURSE: Scope(COURSE, COURSE),
    START: Scope(START, START),
}


def second_layout(start: int, steps: int, has_chunks: bool, each_micro_batch: bool, rank: int) -> Layout:
    """The files of `TrainerMonitorV2`: one for each of its monitors, ``module_step0-9.csv``.

    Args:
        start: The first collected step, from which files are counted.
        steps: The number of steps of a file.
        has_chunks: False if there is one model, whose ``vpp_stage`` is -1.
        each_micro_batch: True if unreduced gradients of each micro batch are collected.
        rank: For the names of communication.
    """

    def line_of(step: TrendStep, place: Scope, family: str, row: TrendRow, values: str) -> str:
        chunk, name, micro = str(row.chunk) if has_chunks else "-1", row.name, ""
        if place.file == "cc":
            chunk, name = "", f"{row.name}/rank{rank}/{row.more[1]}_{row.more[0]}"
        elif place.file == "optimizer":
            name = f"{row.name}.{family}"
        elif place.file == "weight_grad":
            is_each = each_micro_batch and family == UNREDUCED
            micro = f"{row.micro + 1 if is_each else max(step.micro_batches, 1)},"
        return f"{chunk},{step.number},{_quoted(name)},{place.scope},{micro}{values}\n"

    def files(step: TrendStep) -> Iterable[File]:
        first = start + max(step.number - start, 0) // steps * steps
        found: dict[str, File] = {}
        for table in step.tables:
            place = SCOPES.get(table.family) or Scope("optimizer", table.family)
            micro = ["micro_step"] if place.file == "weight_grad" else []
            header = ",".join(["vpp_stage", "step", "module_name", "scope", *micro, *table.ops]) + "\n"
            name = f"{place.file}_step{first}-{first + steps - 1}.csv"
            file = found.setdefault(name, File(name, header, []))
            rows = [row for row in table.rows if row.values is not None]
            texts = number_texts([list(map(float, row.values or ())) for row in rows])
            file.lines.extend(line_of(step, place, table.family, *each) for each in zip(rows, texts))
        return found.values()

    return files


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
            for file in self._layout(step):
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


# --- keys


_FAMILIES = {UNREDUCED: "acc_grad", REDUCED: "post_grad"}
"""Families that have another name in keys than in files (seen)."""


def inner_key(family: str, name: str, stage: int, micro: int | None, rank: int) -> str:
    """The key of a row.

    Args:
        micro: The micro step; ``None`` if the family has none.

    Example:
        >>> inner_key("grad_reduced", "head.weight", 0, None, 1), inner_key("actv", "head.input", 0, 2, 0)
        ('0:head.weight/rank1/post_grad', '0:head.input:2/rank0/actv')
    """
    return f"{stage}:{name}{'' if micro is None else f':{micro}'}/rank{rank}/{_FAMILIES.get(family, family)}"


# --- structure


def write_structure(above: str, rank: int, structure: Mapping[str, Any]) -> str:
    """Write ``module_struct/rank<R>/module_struct.json`` below `above`; its path.

    Raises:
        OSError: it cannot be written.
    """
    folder = os.path.join(above, "module_struct", f"rank{rank}")
    make_folder(folder)
    path = os.path.join(folder, "module_struct.json")
    with replacing(path) as stream:
        stream.write(json.dumps(structure, indent=2).encode())
    return path


def write_stacks(folder: str, stacks: Mapping[str, str]) -> None:
    """Write ``stack_info.csv``: each module with the frames that called it, the innermost first.

    Raises:
        OSError: it cannot be written.
    """
    make_folder(folder)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("module_name", "stack_info"))
    writer.writerows((harmless(name), harmless(stack)) for name, stack in stacks.items())
    with replacing(os.path.join(folder, "stack_info.csv")) as stream:
        stream.write(text.getvalue().encode())


# --- folders


VARIABLE = "MONITOR_OUTPUT_DIR"
DEFAULT = "./monitor_output"
TIME = "%b%d_%H-%M-%S"
FOLDER = re.compile(r"(?P<time>[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2})-rank(?P<rank>\d+)-(?P<run>[0-9a-f]+)")
"""The name of the folder of a rank."""
_JOB = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
"""Variables that are the same for all ranks of a job."""


def base() -> str:
    """The folder that holds the runs."""
    return os.environ.get(VARIABLE) or DEFAULT


def run_folder(above: str, rank: int, continues: Sequence[str] = ()) -> str:
    """Make the folder of this run, such as ``Nov27_14-20-00-rank0-1a2b3c4d``.

    Args:
        above: The folder that holds the runs.
        rank: The rank of this process.
        continues: Two times: a folder of this rank whose time lies between them is used again.
    """
    if continues:
        found = [
            name
            for name in sorted(os.listdir(above) if os.path.isdir(above) else ())
            if (match := FOLDER.fullmatch(name))
            and int(match["rank"]) == rank
            and moment(continues[0]) <= moment(match["time"]) <= moment(continues[1])
        ]
        if found:
            return os.path.join(above, found[-1])
    path = os.path.join(above, f"{clock.stamp(TIME)}-rank{rank}-{_run()}")
    make_folder(path)
    return path


def moment(text: str) -> tuple[int, ...]:
    """The time in the name of a folder, to be compared; empty if the text is none."""
    try:
        # A leap year, so that Feb29 is a day.
        return tuple(time.strptime(f"2024 {text}", f"%Y {TIME}"))
    except (ValueError, TypeError):
        return ()


def _run() -> str:
    """The number of the run, the same for all of its ranks where the launcher names the job."""
    job = [os.environ[name] for name in _JOB if name in os.environ]
    if len(job) > 1:
        return hashlib.sha256("\0".join(job).encode()).hexdigest()[:8]
    return os.urandom(4).hex()
