"""The files of a check: the answer as JSON, tables as CSV, the page."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from probe.common import files
from probe.common.report.csv_lines import csv_line
from probe.common.report.json_values import to_json
from probe.rollout.output.page import page
from probe.rollout.output.text import Decode, as_json
from probe.rollout.report import RolloutReport
from probe.rollout.response_anomaly import anomaly_column

Array = NDArray[Any]


def write(report: RolloutReport, folder: str, decode: Decode | None = None) -> list[str]:
    """Write all files to a folder; existing ones of these names are replaced.

    Raises:
        OSError: a file cannot be written.
        MsprobeException: the folder cannot be made.
    """
    files.make_folder(folder)
    answer = json.dumps(to_json(as_json(report, decode)), indent=1, allow_nan=False)
    written = [_text(folder, "rollout_check.json", answer)]
    if len(report.tokens):
        written += _tables(report, folder)
    written.append(_text(folder, "rollout_check.html", page(report, decode)))
    return written


def _tables(report: RolloutReport, folder: str) -> list[str]:
    tokens = report.tokens
    of_sequences: dict[str, Sequence[Any] | Array] = {"sequence": tokens.names}
    for name, values in (("step", tokens.steps), ("rank", tokens.ranks)):
        if values is not None:
            of_sequences[name] = values
    is_known = tokens.ids is not None or tokens.top is not None
    ill = {"anomaly": anomaly_column(report.anomalies, len(tokens.lengths))} if is_known else {}
    of_positions = report.by_position
    written = [
        _table(folder, "sequences", {**of_sequences, **report.by_sequence, **ill}),
        _table(folder, "positions", {"position": range(len(of_positions["tokens"])), **of_positions}),
    ]
    for name, grouped in (("step", report.by_step), ("rank", report.by_rank)):
        if grouped is not None:
            written.append(_table(folder, f"{name}s", {name: grouped[0], **grouped[1]}))
    return written


def _table(folder: str, name: str, columns: Mapping[str, Sequence[Any] | Array]) -> str:
    path = os.path.join(folder, f"rollout_{name}.csv")
    with files.replacing(path) as stream:
        stream.write(csv_line(list(columns)))
        for row in zip(*(_cells(values) for values in columns.values())):
            stream.write(csv_line(row))
    return path


def _cells(values: Sequence[Any] | Array) -> Iterable[Any]:
    return values if isinstance(values, (list, range, tuple)) else values.tolist()  # type: ignore[union-attr]


def _text(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with files.replacing(path) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))
    return path
