"""Our rules: each row is compared with its own history, and no threshold is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.report.trends import COURSE, START
from probe.monitor.alerts import health, spikes
from probe.monitor.alerts.block import blocks_of
from probe.monitor.alerts.course import CourseRules
from probe.monitor.alerts.experts import RouterRule
from probe.monitor.alerts.falls import FallRule
from probe.monitor.alerts.families import execution_order, in_execution_order
from probe.monitor.alerts.rows import FamilyRows, Finding
from probe.monitor.alerts.tracks import Track

MIN_HISTORY = 5


class LearnedRules:
    """A judge that learns the size of every row.

    Args:
        rank: The rank whose rows are judged.
        min_history: Steps that a row needs before its size is compared.
    """

    def __init__(self, rank: int = 0, min_history: int = MIN_HISTORY) -> None:
        self._rank, self._min_history = rank, min_history
        self._tracks: dict[str, Track] = {}
        self._depth = health.DepthRule()
        self._missing = health.MissingGradients()
        self._course, self._router, self._falls = CourseRules(), RouterRule(), FallRule()

    def judge(self, step: int, rows: Sequence[FamilyRows]) -> list[Finding]:
        rank, history = self._rank, self._min_history
        found: list[Finding] = []
        ordered = in_execution_order(rows)
        for block in blocks_of([each for each in ordered if each.family not in (COURSE, START)]):
            track = self._track(" ".join(block.ops))
            track.align(block)
            found += spikes.nonfinite(step, rank, block, track)
            found += spikes.growth(step, rank, block, track, history)
            found += health.dead(step, rank, block, track)
        families = {}
        for each in ordered:
            found += self._depth.look(step, rank, each)
            families[each.family] = each
        found += health.unchanged(step, rank, families, self._track("unchanged"))
        found += self._missing.look(step, rank, families, history)
        found += self._course.look(step, rank, families)
        found += self._router.look(step, rank, families)
        found += self._falls.look(step, rank, families, history)
        return sorted(found, key=execution_order)

    def finished(self, found: Finding) -> Finding:
        """A finding as it is after the last step."""
        return self._course.finished(found)

    def _track(self, name: str) -> Track:
        track = self._tracks.get(name)
        if track is None:
            track = self._tracks[name] = Track()
        return track
