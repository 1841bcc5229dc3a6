"""The files of the gradient probe. Every comparison looks for them and most find none, so this costs no import."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.common.dump.naming import file_name
from probe.common.errors import MsprobeException
from probe.common.files import make_folder, open_for_reading, replacing
from probe.common.report.csv_lines import csv_line, unharmed
from probe.common.report.trends import CHECKSUM, GRADIENT_DIRECTION, SIGN, TrendStep, TrendTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NAME, _SHAPE, _ZEROS = "param_name", "shape", "=0"
_STATISTICS = ("max", "min", "norm")
_RANK = re.compile(r"rank(\d+)")
_SUMMARY = re.compile(r"grad_summary_(\d+)\.csv")


def ops_of(bounds: Sequence[float]) -> tuple[str, ...]:
    """The columns of numbers: the intervals ``(-inf, -1]``, ``(-1, inf)`` that bounds make, zeros, and statistics."""
    if not bounds:
        return _STATISTICS
    ends = [f"{bound}" for bound in bounds]
    intervals = (f"({low}, {high}]" for low, high in zip(["-inf", *ends], ends))
    return (*intervals, f"({ends[-1]}, inf)", _ZEROS, *_STATISTICS)


class GradientFiles:
    """The files of one rank. A step whose table is there is complete.

    Args:
        folder: The folder of the rank.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have a table, ascending."""
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else ()
        return tuple(sorted(int(match[1]) for name in names if (match := _SUMMARY.fullmatch(name))))

    def _table(self, step: int) -> str:
        return os.path.join(self.folder, f"grad_summary_{step}.csv")

    def _signs(self, step: int, parameter: str) -> str:
        return os.path.join(self.folder, f"step{step}", file_name(parameter, ".npy"))

    # --- writing

    def write(self, step: TrendStep) -> None:
        """Write one step.

        Raises:
            OSError: a file cannot be written.
        """
        for table in step.tables:
            if table.family == SIGN:
                make_folder(self.folder)
                self._write_signs(step.number, table)
                self._write_table(step.number, table)
            elif table.family == GRADIENT_DIRECTION:
                make_folder(self.folder)
                from probe.monitor.tables import first_layout

                # As a monitor writes it: one reader takes both.
                for file in first_layout(1, None)(step._replace(tables=[table])):
                    with replacing(os.path.join(self.folder, file.name)) as stream:
                        stream.write("".join((file.header, *file.lines)).encode())

    def _write_signs(self, step: int, table: TrendTable) -> None:
        if not any(table.bits):
            return
        import numpy as np

        make_folder(os.path.join(self.folder, f"step{step}"))
        for row, bits in zip(table.rows, table.bits):
            stream = io.BytesIO()
            np.save(stream, np.frombuffer(bits, np.uint8), allow_pickle=False)
            with replacing(self._signs(step, row.name)) as file:
                file.write(stream.getvalue())

    def _write_table(self, step: int, table: TrendTable) -> None:
        columns = (_NAME, *(each for each in table.more if each == CHECKSUM), *table.ops, _SHAPE)
        with replacing(self._table(step)) as file:
            # As its documentation has it, which a cell for spreadsheets would not be.
            header = ",".join(f'"{each}"' if "," in each else each for each in columns)
            file.write(f"{header}\n".encode())
            for row in table.rows:
                file.write(csv_line([row.name, *row.more, *(row.values or ()), row.shape]))

    # --- reading

    def shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """The parameters of a step with the shapes of their gradients.

        Raises:
            MsprobeException: the table cannot be read, or is of another tool.
        """
        path = self._table(step)
        try:
            with open_for_reading(path) as stream:
                text = stream.read().decode("utf-8", "replace")
        except OSError as error:
            raise MsprobeException(f"{path} cannot be read: {error.strerror}.") from error
        rows = csv.DictReader(io.StringIO(text, newline=""))
        try:
            missing = {_NAME, _SHAPE}.difference(rows.fieldnames or ())
            if missing:
                raise MsprobeException(f"{path} has no column {' and no column '.join(sorted(missing))}.")
            # A row that is cut short has no cell there.
            return {unharmed(row[_NAME] or ""): _shape(path, row[_SHAPE]) for row in rows}
        except csv.Error as error:
            raise MsprobeException(f"{path}: line {rows.reader.line_num} is no line of a table: {error}.") from None

    def signs(self, step: int, parameter: str, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """True for each element of a gradient that is above zero; ``None`` if there is no such file.

        Raises:
            MsprobeException: the file cannot be read, or has another number of elements.
        """
        path = self._signs(step, parameter)
        if not os.path.exists(path):
            return None
        import numpy as np

        from probe.common.dump.reading.tensor_reading import read_tensor

        stored = read_tensor(path)
        elements = math.prod(shape)
        if stored.dtype == np.bool_ and stored.size == elements:
            return stored.reshape(-1)
        if stored.dtype != np.uint8 or stored.size != (elements + 7) // 8:
            text = f"{stored.size} values of {stored.dtype}, and the table has the shape {list(shape)}"
            raise MsprobeException(f"{path} has {text}; allowed: a bit for each element.")
        return np.unpackbits(stored.reshape(-1), count=elements).astype(np.bool_)


def _shape(path: str, text: str | None) -> tuple[int, ...]:
    try:
        found = json.loads((text or "").replace("(", "[").replace(",)", "]").replace(")", "]"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, int) and each >= 0 for each in found):
        raise MsprobeException(f"{path} has the shape {text!r}; allowed: a list of whole numbers such as [2, 8].")
    return tuple(found)


def probed_ranks(path: str) -> dict[int, GradientFiles]:
    """The ranks of a run, by number; empty if `path` is no folder of the gradient probe.

    Args:
        path: The ``dump_path`` of the run.
    """
    try:
        names = os.listdir(path)
    except OSError:
        return {}
    matches = [match for name in names if (match := _RANK.fullmatch(name))]
    found = {int(match[1]): GradientFiles(os.path.join(path, match[0])) for match in matches}
    return {rank: files for rank, files in sorted(found.items()) if files.steps}
