"""The data of the trend page: the cells of each run, family and statistic, the alerts, and the first difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.common.report.page.packing import packed_text
from probe.monitor.alerts.families import position
from probe.monitor.alerts.rows import Finding, Floats
from probe.monitor.reading.csv_rows import Columns
from probe.monitor.reading.run import MonitorRun, folder_name
from probe.monitor.report.judging import JudgedRun
from probe.monitor.report.two_runs import TwoRuns
from probe.monitor.trend.cells import encode, over_ranks, thinned

FORMAT = 1
MOST_CELLS = 5_000_000
_OPS = ("norm", "max", "min", "mean", "zeros")
"""Statistics in the order in which they are given up where there are too many cells."""
_AGGREGATED = ("min", "median", "max")
_MOST_ALERTS = 2000
_FEWEST_STEPS = 200


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
    first = None if difference is None or difference.first is None else difference.first
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
