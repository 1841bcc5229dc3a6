"""The file of a report, and that of another tool where one is wanted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from probe.common import files
from probe.overflow.findings import Report
from probe.overflow.report import as_json

REPORT_FILE = "overflow_report.json"
WriteAnomalies = Callable[[Report, str], str]
"""Writes another tool's file of a report to a folder; returns its path."""


def write(report: Report, output: str, write_anomalies: WriteAnomalies | None = None) -> list[str]:
    """Write the report; returns the paths of all files. The folder must be there.

    Args:
        report: The report.
        output: The folder.
        write_anomalies: Writes another tool's file, where something was found.

    Raises:
        OSError: they cannot be written.
    """
    path = os.path.join(output, REPORT_FILE)
    with files.replacing(path) as stream:
        stream.write(json.dumps(as_json(report), allow_nan=False, indent=1).encode())
    if report.found is None or write_anomalies is None:
        return [path]
    return [path, write_anomalies(report, output)]
