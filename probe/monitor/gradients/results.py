"""The results of a comparison of gradients: a table for each rank, and a picture for each parameter."""

from __future__ import annotations

import os
from collections.abc import Sequence

from probe.common.dump.naming import file_name
from probe.common.files import make_folder, replacing
from probe.common.report.csv_lines import csv_line
from probe.monitor.gradients.comparing import LEAST_AT_FIRST, RankSimilarity
from probe.monitor.gradients.picture import line_picture

TABLE, PICTURES, TOTAL = "similarities.csv", "similarities_picture", "summary"


def write_results(folder: str, ranks: Sequence[RankSimilarity]) -> None:
    """Write ``similarities.csv`` and the pictures; in folders ``rank<R>`` if there are several ranks.

    Raises:
        OSError: a file cannot be written.
        MsprobeException: the folder cannot be made.
    """
    for each in ranks:
        of_rank = os.path.join(folder, f"rank{each.rank}") if len(ranks) > 1 else folder
        make_folder(of_rank)
        _write_table(os.path.join(of_rank, TABLE), each)
        _write_pictures(os.path.join(of_rank, PICTURES), each)


def _write_table(path: str, found: RankSimilarity) -> None:
    with replacing(path) as stream:
        stream.write(csv_line(["step", *found.parameters, TOTAL]))
        for step in found.steps:
            values = [found.similarity.get((step, each)) for each in found.parameters]
            stream.write(csv_line([step, *values, found.total.get(step)]))


def _write_pictures(folder: str, found: RankSimilarity) -> None:
    make_folder(folder)
    for parameter in (*found.parameters, None):
        stem = f"{TOTAL}_similarities" if parameter is None else parameter
        with replacing(os.path.join(folder, file_name(stem, ".png"))) as stream:
            stream.write(line_picture(found.line(parameter), LEAST_AT_FIRST))
