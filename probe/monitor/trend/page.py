"""The trend page: cells of 16 bits, its data (rows, alerts, first difference), and the HTML file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common import files
from probe.common.progress import ProgressCallback
from probe.common.report.page import filling
from probe.common.report.page.filling import packed_text
from probe.monitor import trend
from probe.monitor.alerts.rows import Finding, Floats, position
from probe.monitor.csv_rows import Columns
from probe.monitor.judging import JudgedRun, judge_run
from probe.monitor.monitor_run import MonitorRun, folder_name, read_monitor
from probe.monitor.two_runs import TwoRuns, compare_runs

MISSING, NOT_A_NUMBER, INFINITY, MINUS_INFINITY, ZERO, FIRST = range(6)
"""Codes below `FIRST` stand for what is no number, and for zero on a log scale."""
_CODES = 65535 - FIRST
Codes = NDArray[np.uint16]


@dataclass(frozen=True)
class Encoded:
    """Codes of shape (ranks, rows, steps), and the scale of each row."""

    codes: Codes
    low: Floats
    width: Floats
    is_log: bool
    """True where codes stand for log10 of values, which is of values that are never negative."""


def encode(values: Floats, missing: NDArray[np.bool_]) -> Encoded:
    """Encode values of shape (ranks, rows, steps).

    The relative error is below 0.1 % for values within 20 decades, or 0.002 % of the range of a row on a linear scale.
    """
    finite = np.isfinite(values) & ~missing
    is_log = not bool((values[finite] < 0).any())
    is_zero = finite & (values == 0) if is_log else np.zeros_like(finite)
    counted = finite & ~is_zero
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.where(counted, np.log10(np.where(counted, values, 1.0)) if is_log else values, np.nan)
    low = np.fmin.reduce(np.fmin.reduce(numbers, axis=2), axis=0)
    high = np.fmax.reduce(np.fmax.reduce(numbers, axis=2), axis=0)
    low = np.where(np.isfinite(low), low, 0.0)
    width = np.where(np.isfinite(high - low) & (high > low), high - low, 1.0)
    scaled = (numbers - low[None, :, None]) / width[None, :, None]
    codes = np.where(counted, FIRST + np.rint(np.nan_to_num(scaled) * _CODES), MISSING).astype(np.uint16)
    codes[is_zero] = ZERO
    codes[np.isnan(values) & ~missing] = NOT_A_NUMBER
    codes[np.isposinf(values) & ~missing] = INFINITY
    codes[np.isneginf(values) & ~missing] = MINUS_INFINITY
    return Encoded(codes, low, width, is_log)


def over_ranks(values: Floats) -> Floats:
    """Minimum, median and maximum over the ranks, in place of the ranks."""
    kept = np.where(np.isfinite(values), values, np.nan)
    with np.errstate(invalid="ignore"):
        low, high = np.fmin.reduce(kept, axis=0), np.fmax.reduce(kept, axis=0)
    ordered = np.sort(kept, axis=0)
    count = np.isfinite(ordered).sum(axis=0)
    middle = np.take_along_axis(ordered, np.maximum(count - 1, 0)[None] // 2, axis=0)[0]
    found: Floats = np.stack((low, middle, high))
    # A value that is not finite stays in sight.
    bad = ~np.isfinite(values)
    first_bad = np.take_along_axis(values, bad.argmax(axis=0)[None], axis=0)[0]
    found[2] = np.where(bad.any(axis=0), first_bad, found[2])
    return found


def thinned(steps: Sequence[int], most: int) -> list[int]:
    """The indices of at most so many steps, evenly."""
    if len(steps) <= most:
        return list(range(len(steps)))
    found: list[int] = np.unique(np.linspace(0, len(steps) - 1, most).round().astype(int)).tolist()
    return found


# --- data


FORMAT = 1
"""The version of the data of the page: a part of the format."""
MOST_CELLS = 5_000_000
"""Cells of a page: about 10 MB, which a browser opens in about a second; a guess."""
_OPS = ("norm", "max", "min", "mean", "zeros")
"""Statistics in the order in which they are given up where there are too many cells."""
_AGGREGATED = ("min", "median", "max")
_MOST_ALERTS = 2000
"""Alerts on a page; a guess."""
_FEWEST_STEPS = 200
"""Steps that a page keeps of each row whatever their number of rows; a guess."""


@dataclass
class PageContent:
    """The manifest and the blocks of a page."""

    manifest: dict[str, Any]
    blocks: dict[str, bytes]


def content_of(judged: Sequence[JudgedRun], difference: TwoRuns | None, most_cells: int = MOST_CELLS) -> PageContent:
    """The content of the page of some runs.

    Args:
        judged: The runs, judged.
        difference: The first difference of the first two, if there are two.
        most_cells: Cells of all runs together; with more, ranks, statistics or steps are left out, and a note says so.
    """
    blocks: dict[str, bytes] = {}
    runs = [_run(index, each, most_cells // len(judged), blocks) for index, each in enumerate(judged)]
    first = None if difference is None else difference.earliest
    manifest = {
        "format": FORMAT,
        "title": "trend: " + ", ".join(run["name"] for run in runs),
        "runs": runs,
        "difference": None if first is None else {**first.as_json(), "text": first.text()},
        "compared": None if difference is None else difference.compared,
    }
    return PageContent(manifest, blocks)


def _run(index: int, judged: JudgedRun, most_cells: int, blocks: dict[str, bytes]) -> dict[str, Any]:
    run = judged.run
    steps, ranks = run.steps, [str(rank) for rank in run.ranks]
    notes = list(run.notes)
    names = sorted(sorted({name for families in run.of_rank.values() for name in families}), key=position)
    tables = {name: _Table.of(run, name) for name in names}
    rows = sum(len(table.rows) for table in tables.values())
    is_aggregated = rows * len(steps) * len(ranks) > most_cells and len(ranks) > len(_AGGREGATED)
    if is_aggregated:
        notes.append(f"{len(ranks)} ranks are shown as minimum, median and maximum, because there are too many cells.")
        ranks = list(_AGGREGATED)
    room = max(most_cells // max(rows * len(ranks), 1), _FEWEST_STEPS)
    shown = thinned(steps, room)
    if len(shown) < len(steps):
        notes.append(f"{len(shown)} of {len(steps)} steps are shown, because there are too many cells.")
    per_op = max(rows * len(shown) * len(ranks), 1)
    ops_left = max(most_cells // per_op, 1)
    known = [op for op in _OPS if any(op in table.ops for table in tables.values())]
    others = [op for table in tables.values() for op in table.ops if op not in _OPS]
    wanted = list(dict.fromkeys((*known, *others)))[:ops_left]
    left = len(set(known)) - len(set(known) & set(wanted))
    if left > 0:
        notes.append(f"{left} statistics are left out, because there are too many cells: {', '.join(known[-left:])}.")
    families = []
    for number, (name, table) in enumerate(tables.items()):
        scales = {}
        for op in wanted:
            if op not in table.ops:
                continue
            values = table.values(run, op, steps)
            missing = np.isnan(values) & ~table.there
            if is_aggregated:
                values = over_ranks(values)
                missing = np.broadcast_to(missing.all(axis=0), values.shape)
            encoded = encode(values[:, :, shown], missing[:, :, shown])
            block = f"r{index}f{number}{op}"
            blocks[block] = packed_text(encoded.codes.astype("<u2").tobytes())
            low, width = encoded.low.round(9).tolist(), encoded.width.round(9).tolist()
            scales[op] = {"block": block, "low": low, "width": width, "log": encoded.is_log}
        if scales:
            families.append({"name": name, "rows": [row.label for row in table.rows], "ops": scales})
    first = judged.first
    return {
        "name": folder_name(run.path),
        "ranks": ranks,
        "aggregated": is_aggregated,
        "steps": [steps[at] for at in shown],
        "families": families,
        "notes": notes,
        "first": None if first is None else first.text(),
        "alerts": _alerts(judged.findings),
        "alert_count": len({(each.step, each.family, each.name, each.rule) for each in judged.findings}),
    }


def _alerts(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings, those of one row and step on several ranks as one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in findings:
        label = _Row(each.name, each.micro_step, each.vpp_stage).label
        key = each.step, each.family, label, each.rule
        if key in found:
            found[key]["ranks"].append(each.rank)
        elif len(found) < _MOST_ALERTS:
            entry = {"family": each.family, "row": label, "rule": each.rule, "why": each.why}
            found[key] = {"step": each.step, "ranks": [each.rank], **entry}
    return list(found.values())


@dataclass(frozen=True)
class _Row:
    name: str
    micro: int
    stage: int

    @property
    def label(self) -> str:
        """The name, with the micro step and the chunk where these are not the first."""
        micro = f" · micro {self.micro}" if self.micro else ""
        return f"{self.name or '(root)'}{micro}{f' · chunk {self.stage}' if self.stage else ''}"


@dataclass
class _Table:
    """The rows of a family over all ranks, in the order in which they were first recorded."""

    family: str
    rows: list[_Row]
    ops: list[str]
    there: np.ndarray
    """Shape (ranks, rows, steps): true where there is a row."""
    positions: list[tuple[int, Columns, list[int], list[int]]]
    """Rows of each rank, and for each row its position and step on the page."""

    @staticmethod
    def of(run: MonitorRun, family: str) -> _Table:
        steps = {step: at for at, step in enumerate(run.steps)}
        index: dict[_Row, int] = {}
        ops: dict[str, None] = {}
        positions = []
        for at_rank, rank in enumerate(run.ranks):
            columns = run.of_rank[rank].get(family)
            if columns is None:
                continue
            ops.update(dict.fromkeys(columns.statistics))
            # Of gradients the last micro step is the only one, unless each is recorded.
            keys = [_Row(*key) for key in zip(columns.name, columns.micro, columns.stage)]
            at_rows = [index.setdefault(key, len(index)) for key in keys]
            positions.append((at_rank, columns, at_rows, [steps[step] for step in columns.step]))
        there = np.zeros((len(run.ranks), len(index), len(steps)), dtype=np.bool_)
        for at_rank, _, at_rows, at_steps in positions:
            there[at_rank, at_rows, at_steps] = True
        table = _Table(family, list(index), [op for op in ops if op not in ("id", "nans")], there, positions)
        table._forget_missing()
        return table

    def _forget_missing(self) -> None:
        """Rows without a dtype are gradients that do not exist."""
        for at_rank, columns, at_rows, at_steps in self.positions:
            dtypes = columns.texts.get("dtype")
            if dtypes is not None:
                absent = [at for at, dtype in enumerate(dtypes) if dtype in ("", "nan")]
                self.there[at_rank, [at_rows[at] for at in absent], [at_steps[at] for at in absent]] = False

    def values(self, run: MonitorRun, op: str, steps: Sequence[int]) -> Floats:
        """The values of a statistic, shape (ranks, rows, steps); NaN where there is none."""
        found = np.full((len(run.ranks), len(self.rows), len(steps)), np.nan)
        for at_rank, columns, at_rows, at_steps in self.positions:
            if op in columns.statistics:
                found[at_rank, at_rows, at_steps] = columns.statistics[op]
        return found


# --- page


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
