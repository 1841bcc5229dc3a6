"""The trend page as a file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from probe.common import files
from probe.common.progress import ProgressCallback
from probe.common.report.page import filling
from probe.monitor import trend
from probe.monitor.reading.run import read_monitor
from probe.monitor.report.judging import JudgedRun, judge_run
from probe.monitor.report.two_runs import TwoRuns, compare_runs
from probe.monitor.trend.data import MOST_CELLS, PageContent, content_of

VIEWER = os.path.join(os.path.dirname(trend.__file__), "viewer")


def html(content: PageContent) -> str:
    """The page as one file that needs nothing else."""
    data = filling.data_elements(content.manifest, content.blocks)
    return filling.page(VIEWER, str(content.manifest["title"]), data)


@dataclass(frozen=True)
class TrendPage:
    """The page of some runs that was written."""

    path: str
    judged: Sequence[JudgedRun]
    difference: TwoRuns | None
    """The first difference of the first two runs."""
    notes: list[str]
    """Remarks on what is left out."""


def write_trend(
    paths: Sequence[str], output: str, watch: ProgressCallback | None = None, most_cells: int = MOST_CELLS
) -> TrendPage:
    """Write the trend page of some monitor folders.

    Args:
        paths: The folders; each is a run.
        output: The folder of the page, which is called ``trend_<time>.html``.
        watch: A callback for how far the work is.
        most_cells: Cells of the page.

    Raises:
        MsprobeException: a folder has no rows, or the page cannot be written.
    """
    judged = [judge_run(read_monitor(path), watch) for path in paths]
    difference = compare_runs(judged[0].run, judged[1].run) if len(judged) > 1 else None
    content = content_of(judged, difference, most_cells)
    files.make_folder(output)
    path = os.path.join(output, f"trend_{time.strftime('%Y%m%d%H%M%S')}.html")
    with files.replacing(path) as stream:
        stream.write(html(content).encode("utf-8"))
    notes = [note for run in content.manifest["runs"] for note in run["notes"]]
    return TrendPage(path, judged, difference, notes)
