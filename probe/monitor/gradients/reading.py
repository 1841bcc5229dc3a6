"""The reader of the files of the gradient probe."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probe.common.dump.reading.tensor_reading import read_tensor
from probe.common.errors import MsprobeException
from probe.common.files import open_for_reading
from probe.common.report.cells import unharmed
from probe.monitor.gradients.layout import NAME, RANK, SHAPE, signs_file, signs_folder, steps_in, summary_file

Signs = NDArray[np.bool_]


@dataclass(frozen=True)
class ProbedRank:
    """The files of one rank.

    Args:
        folder: The path.
        steps: The steps that have a table, ascending.
    """

    folder: str
    steps: tuple[int, ...]

    def shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        """The parameters of a step with the shapes of their gradients.

        Raises:
            MsprobeException: the table cannot be read, or is of another tool.
        """
        path = os.path.join(self.folder, summary_file(step))
        try:
            with open_for_reading(path) as stream:
                text = stream.read().decode("utf-8", "replace")
        except OSError as error:
            raise MsprobeException(f"{path} cannot be read: {error.strerror}.") from error
        rows = csv.DictReader(io.StringIO(text, newline=""))
        try:
            missing = {NAME, SHAPE}.difference(rows.fieldnames or ())
            if missing:
                raise MsprobeException(f"{path} has no column {' and no column '.join(sorted(missing))}.")
            # A row that is cut short has no cell there.
            return {unharmed(row[NAME] or ""): _shape(path, row[SHAPE]) for row in rows}
        except csv.Error as error:
            raise MsprobeException(f"{path}: line {rows.reader.line_num} is no line of a table: {error}.") from None

    def signs(self, step: int, parameter: str, shape: tuple[int, ...]) -> Signs | None:
        """True for each element of a gradient that is above zero; ``None`` if there is no such file.

        Raises:
            MsprobeException: the file cannot be read, or has another number of elements.
        """
        path = os.path.join(self.folder, signs_folder(step), signs_file(parameter))
        if not os.path.exists(path):
            return None
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


def probed_ranks(path: str) -> Mapping[int, ProbedRank]:
    """The ranks of a run, by number.

    Args:
        path: The ``dump_path`` of the run.

    Raises:
        MsprobeException: `path` is no folder of the gradient probe.
    """
    if not isinstance(path, str) or not os.path.isdir(path):
        raise MsprobeException(f"{path!r} is no folder; allowed: the dump_path of a run with task grad_probe.")
    found = {}
    for name in os.listdir(path):
        match = RANK.fullmatch(name)
        folder = os.path.join(path, name)
        if match is not None and (steps := steps_in(folder)):
            found[int(match[1])] = ProbedRank(folder, steps)
    if not found:
        allowed = f"rank<R>/{summary_file(0)} and more, which task grad_probe writes"
        raise MsprobeException(f"{path} has no tables of gradients; allowed: a folder with {allowed}.")
    return dict(sorted(found.items()))
