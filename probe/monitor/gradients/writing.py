"""The writer of the gradient probe: a table for each step, and the signs of each gradient."""

from __future__ import annotations

import io
import os

import numpy as np

from probe.common.files import make_folder, replacing
from probe.common.report.csv_lines import csv_line
from probe.common.report.trends import SIGN, TrendStep, TrendTable
from probe.monitor.gradients.layout import header, signs_file, signs_folder, summary_file


class SignFiles:
    """Writes the rows of each step. A step whose table is there is complete.

    Args:
        folder: The folder of the rank.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, step: TrendStep) -> None:
        """Write one step.

        Raises:
            OSError: a file cannot be written.
        """
        for table in step.tables:
            if table.family == SIGN:
                make_folder(self._folder)
                self._write_signs(step.number, table)
                self._write_table(step.number, table)

    def _write_signs(self, step: int, table: TrendTable) -> None:
        if not any(table.bits):
            return
        folder = os.path.join(self._folder, signs_folder(step))
        make_folder(folder)
        for row, bits in zip(table.rows, table.bits):
            stream = io.BytesIO()
            np.save(stream, np.frombuffer(bits, np.uint8), allow_pickle=False)
            with replacing(os.path.join(folder, signs_file(row.name))) as file:
                file.write(stream.getvalue())

    def _write_table(self, step: int, table: TrendTable) -> None:
        with replacing(os.path.join(self._folder, summary_file(step))) as file:
            file.write(header(table.ops, table.more).encode())
            for row in table.rows:
                file.write(csv_line([row.name, *row.more, *(row.values or ()), row.shape]))
