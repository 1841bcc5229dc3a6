"""The file in which msProbe's search for anomalies says what it found: ``anomaly_analyze_<time>.json``."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from probe.common import files
from probe.common.dump.json_decode import with_numbers
from probe.common.dump.naming import BACKWARD, parse
from probe.overflow.details import add_details
from probe.overflow.findings import Finding, Report


def write_anomalies(report: Report, output: str) -> str:
    """Write the first findings of a report; returns the path. The folder must be there.

    Raises:
        OSError: the file cannot be written.
    """
    path = os.path.join(output, f"anomaly_analyze_{time.time_ns()}.json")
    with files.replacing(path) as stream:
        # msProbe writes numbers that JSON lacks as bare words.
        stream.write(json.dumps(_anomalies(report), indent=2).encode())
    return path


def _anomalies(report: Report) -> dict[str, Any]:
    """The first findings as msProbe writes them, rank by rank."""
    found: dict[str, Any] = {}
    for finding in report.first:
        for rank, record in finding.members or [finding.key]:
            is_own = (rank, record) == finding.key and bool(finding.fields)
            entry = _entry(record, finding) if is_own else _member(report, rank, record)
            found.setdefault(f"rank_{rank}", []).append(entry)
    return found


def _entry(record: str, finding: Finding) -> dict[str, Any]:
    parsed = parse(record)
    is_backward = parsed is not None and parsed.direction == BACKWARD
    return {
        "op_name": record,
        "data_info": with_numbers(finding.fields),
        "construct_info": finding.around or [record],
        # That of a backward is the stack of its forward call, which msProbe does not look for.
        "stack_info": [] if is_backward else finding.stack,
    }


def _member(report: Report, rank: int, record: str) -> dict[str, Any]:
    """The entry of a record of which no details were read."""
    assert report.found is not None
    other = Finding("", rank, record)
    add_details([other], report.found.folders[rank], ())
    return _entry(record, other)
