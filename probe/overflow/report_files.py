"""The files of a report: ours, and the one that the reference tool writes."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from probe.common import files
from probe.common.dump.reading.dump import read
from probe.common.dump.reading.json_decode import number
from probe.common.errors import DumpFormatError
from probe.overflow.findings import Report
from probe.overflow.report import as_json

REPORT_FILE = "overflow_report.json"


def write(report: Report, output: str) -> list[str]:
    """Write both files; returns their paths. The folder must be there.

    Raises:
        OSError: they cannot be written.
    """
    paths = [os.path.join(output, REPORT_FILE)]
    with files.replacing(paths[0]) as stream:
        stream.write(json.dumps(as_json(report), allow_nan=False, indent=1).encode())
    if report.found is not None:
        paths.append(os.path.join(output, f"anomaly_analyze_{time.time_ns()}.json"))
        with files.replacing(paths[1]) as stream:
            # The reference tool writes numbers that JSON lacks as bare words.
            stream.write(json.dumps(_anomalies(report), indent=2).encode())
    return paths


def _anomalies(report: Report) -> dict[str, Any]:
    """The first findings as the reference tool writes them, rank by rank."""
    found: dict[str, Any] = {}
    for finding in report.first:
        for rank, record in finding.members or [finding.place]:
            folder = report.folders.get((report.found.step if report.found else None, rank))
            if folder is None:
                continue
            dump = read(folder)
            if record not in dump:
                raise DumpFormatError(f"{dump.path}: record {record} is not there any more.")
            around = [] if dump.tree is None else list(dump.tree.around(record))
            found.setdefault(f"rank_{rank}", []).append(
                {
                    "op_name": record,
                    "data_info": _plain(dump[record].fields),
                    "construct_info": [record, *around],
                    "stack_info": list((dump.stacks or {}).get(record, ())),
                }
            )
    return found


def _plain(value: Any) -> Any:
    """A record with its numbers in the place of the marked texts that stand for them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return number(value)
