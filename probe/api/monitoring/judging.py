"""Alerts while a training runs: the rows of a step as rules take them, and what is done about their findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from probe.common import log
from probe.common.errors import failure_text
from probe.common.report.trends import TrendStep, TrendTable
from probe.monitor.alerts.actions import Actions
from probe.monitor.alerts.configured import alert_settings
from probe.monitor.alerts.rows import FamilyRows, Judge
from probe.monitor.output.anomaly_file import AnomalyFile

_NOT_JUDGED = frozenset(("comm",))


class Alerts:
    """Judges each step of a rank.

    Args:
        alert: The key ``alert`` of the configuration, checked.
        folder: The folder of this rank.
        above: The folder of all ranks, for ``anomaly.json``.
        rank: This rank.
        as_msprobe: True if every value is judged as msProbe does.
        digits: The decimals of the values in files.
        mates: Ranks that run the same stage.
        arm_dump, stop: See `Actions`.
    """

    def __init__(
        self,
        alert: Mapping[str, Any],
        folder: str,
        above: str,
        rank: int,
        as_msprobe: bool,
        mates: tuple[int, ...] = (),
        arm_dump: Callable[[int], None] | None = None,
        stop: Callable[[int], None] | None = None,
    ) -> None:
        settings = alert_settings(alert)
        assert settings is not None
        self._judge: Judge = settings.judge(rank, as_msprobe)
        self._actions = Actions(settings.actions, folder, arm_dump, stop, self._call_back)
        self._as_msprobe = as_msprobe
        self._names: dict[str, tuple[tuple[str, ...], tuple[int, ...] | None, tuple[int, ...]]] = {}
        self._anomalies = AnomalyFile(above, rank, mates, overwrites=as_msprobe) if settings.writes_anomalies else None
        self.callbacks: list[Callable[[Any], None]] = []
        """Functions of the program, which get the findings of a step."""

    def judge(self, step: TrendStep) -> None:
        """Judge one step."""
        found = self._judge.judge(step.number, self.rows_of(step))
        if not found:
            return
        if self._as_msprobe:
            for each in found:
                log.warning(each.why)
        else:
            self._actions.act(step.number, found)
        if self._anomalies is not None:
            self._anomalies.add(found)
            try:
                self._anomalies.flush()
            except Exception as error:
                log.warning(f"anomaly.json could not be written: {failure_text(error)}", once="monitor anomalies")

    def rows_of(self, step: TrendStep) -> list[FamilyRows]:
        """The rows of a step as rules take them."""
        return [self._rows(table, step.first_row) for table in step.tables if table.family not in _NOT_JUDGED]

    def _call_back(self, found: Any) -> None:
        for each in self.callbacks:
            each(found)

    def _rows(self, table: TrendTable, first: int) -> FamilyRows:
        ops = len(table.ops)
        nothing = (math.nan,) * ops
        rows = table.rows
        values = np.array([nothing if row.values is None else row.values for row in rows], dtype=np.float64)
        names, micro, stages = self._keys(table)
        judged = None
        if any(row.values is None or row.is_exact for row in rows):
            judged = np.array([row.values is not None and (self._as_msprobe or not row.is_exact) for row in rows])
        return FamilyRows(
            table.family,
            names,
            table.ops,
            values,
            micro,
            stages,
            np.array([row.elements for row in rows], dtype=np.float64),
            judged,
            np.array([row.order - first for row in rows], dtype=np.int64),
        )

    def _keys(self, table: TrendTable) -> tuple[tuple[str, ...], tuple[int, ...] | None, tuple[int, ...]]:
        """The names, micro batches and chunks of rows; the same objects as long as they are the same."""
        names = tuple(row.name for row in table.rows)
        micro = tuple(row.micro for row in table.rows) if table.has_micro else None
        stages = tuple(row.chunk for row in table.rows)
        known = self._names.get(table.family)
        if known == (names, micro, stages):
            return known
        self._names[table.family] = names, micro, stages
        return names, micro, stages
