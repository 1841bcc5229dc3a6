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
            found += spikes.nonfinite(block, track)
            found += spikes.growth(block, track, history)
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
