"""Alerts while a training runs: each step is judged, and something is done about what is found."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from probe.common import files, log
from probe.common.errors import failure_text
from probe.common.report.json_values import to_json
from probe.common.report.trends import COMMUNICATION, COURSE, START, TrendStep, TrendTable
from probe.monitor.alerts import health
from probe.monitor.alerts.health import RouterRule
from probe.monitor.alerts.history import CourseRules, FallRule, growth, nonfinite
from probe.monitor.alerts.rows import FamilyRows, Finding, Judge, execution_order, in_execution_order
from probe.monitor.alerts.tracks import Track, blocks_of
from probe.monitor.settings import AlertSettings

ALERTS = "alerts.jsonl"
"""The file of a rank: a JSON object a line, for each finding."""
_encode = json.JSONEncoder(allow_nan=False).encode
_MOST_LOGGED = 5
"""Findings of one step that are logged; the file has all of them."""


class Alerts:
    """Judges each step of a rank, and does what the settings say with its findings. No action ever raises.

    Args:
        settings: The key ``alert``.
        rules: The rules that judge.
        rank: This rank.
        folder: Its folder.
        arm_dump: Arms a full dump of the next step; called with the number of the step that was abnormal.
        stop: Asks the training to stop after this step.
        keep: Gets the findings of a step for a file of msProbe.
        as_msprobe: True if rows of integers are judged too, and nothing but the words of msProbe is logged.
    """

    def __init__(
        self,
        settings: AlertSettings,
        rules: Judge,
        rank: int,
        folder: str,
        arm_dump: Callable[[int], None],
        stop: Callable[[int], None],
        keep: Callable[[Sequence[Finding]], None] | None = None,
        as_msprobe: bool = False,
    ) -> None:
        self._settings, self._rules, self._rank, self._folder = settings, rules, rank, folder
        self._arm_dump, self._stop, self._keep, self._as_msprobe = arm_dump, stop, keep, as_msprobe
        self._dumps_left = settings.dump_times
        self._failed: set[str] = set()
        self._known: dict[str, tuple[Any, ...]] = {}
        self.callbacks: list[Callable[[Any], None]] = []
        """Functions of the program, which get the findings of a step."""

    def judge(self, step: TrendStep) -> None:
        """Judge one step."""
        found = self._rules.judge(self.rows_of(step))
        if found:
            self.act(step.number, found)

    def act(self, step: int, found: Sequence[Finding]) -> None:
        """Act on the findings of a step."""
        wanted = () if self._as_msprobe else self._settings.actions
        if self._as_msprobe:
            for each in found:
                log.warning(each.why)
        if "file" in wanted:
            self._guarded("file", lambda: self._append(found))
        if "log" in wanted:
            self._guarded("log", lambda: _log(found))
        if "dump" in wanted and self._dumps_left > 0:
            self._dumps_left -= 1
            self._guarded("dump", lambda: self._arm_dump(step))
        if not self._as_msprobe:
            self._guarded("callback", lambda: [each(found) for each in self.callbacks])
        if "stop" in wanted:
            self._guarded("stop", lambda: self._stop(step))
        keep = self._keep
        if keep is not None:
            self._guarded("anomaly.json", lambda: keep(found))

    def rows_of(self, step: TrendStep) -> list[FamilyRows]:
        """The rows of a step as rules take them."""
        return [self._rows(table, step) for table in step.tables if table.rows and table.family != COMMUNICATION]

    def _rows(self, table: TrendTable, step: TrendStep) -> FamilyRows:
        nothing = (math.nan,) * len(table.ops)
        names, chunks, micros, values, _, _, sizes, exact, orders, _ = zip(*table.rows)
        keys = names, micros if table.has_micro else None, chunks
        # The same objects as long as they are equal, by which rules know at once that rows are those of the last step.
        known = self._known.get(table.family)
        keys = self._known[table.family] = known if known == keys else keys
        judged = None
        if None in values or True in exact:
            every = self._as_msprobe
            judged = np.array([each is not None and (every or not flag) for each, flag in zip(values, exact)])
            values = tuple(nothing if each is None else each for each in values)
        return FamilyRows(
            table.family, keys[0], table.ops, np.array(values, dtype=np.float64), keys[1], keys[2],
            np.array(sizes, dtype=np.float64), judged, np.array(orders, dtype=np.int64) - step.first_row,
            step=step.number, rank=self._rank,
        )  # fmt: skip

    def _append(self, found: Sequence[Finding]) -> None:
        # Of the fields of a finding, only the value can be a number that JSON lacks.
        lines = [_encode({**each.as_json(), "value": to_json(each.value)}) for each in found]
        files.make_folder(self._folder)
        with files.open_for_writing(os.path.join(self._folder, ALERTS), append=True) as stream:
            stream.write(("\n".join(lines) + "\n").encode())

    def _guarded(self, name: str, action: Callable[[], Any]) -> None:
        """A failure is logged once for each action, and never reaches the training."""
        try:
            action()
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                log.warning(f"monitor: action {name} failed: {failure_text(error)}")


def _log(found: Sequence[Finding]) -> None:
    for each in found[:_MOST_LOGGED]:
        log.warning(f"monitor: {each.text()}")
    if len(found) > _MOST_LOGGED:
        log.warning(
            f"monitor: {len(found) - _MOST_LOGGED} more rows of step {found[0].step}; {ALERTS} has all of them."
        )


# --- learned


MIN_HISTORY = 5
"""Steps of history before a row is judged; a guess."""


class LearnedRules:
    """A judge that learns the size of every row.

    Args:
        min_history: Steps that a row needs before its size is compared.
    """

    def __init__(self, min_history: int = MIN_HISTORY) -> None:
        self._min_history = min_history
        self._tracks: dict[str, Track] = {}
        self._depth = health.DepthRule()
        self._missing = health.MissingGradients()
        self._course, self._router, self._falls = CourseRules(), RouterRule(), FallRule()

    def judge(self, rows: Sequence[FamilyRows]) -> list[Finding]:
        history = self._min_history
        found: list[Finding] = []
        ordered = in_execution_order(rows)
        for block in blocks_of([each for each in ordered if each.family not in (COURSE, START)]):
            track = self._track(" ".join(block.ops))
            track.align(block)
            found += nonfinite(block, track)
            found += growth(block, track, history)
            found += health.dead(block, track)
        families = {}
        for each in ordered:
            found += self._depth.look(each)
            families[each.family] = each
        found += health.unchanged(families, self._track("unchanged"))
        found += self._missing.look(families, history)
        found += self._course.look(families)
        found += self._router.look(families)
        found += self._falls.look(families, history)
        return sorted(found, key=execution_order)

    def finished(self, found: Finding) -> Finding:
        """A finding as it is after the last step."""
        return self._course.finished(found)

    def _track(self, name: str) -> Track:
        track = self._tracks.get(name)
        if track is None:
            track = self._tracks[name] = Track()
        return track
