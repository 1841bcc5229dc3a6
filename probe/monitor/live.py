"""The state of a running job, kept from its files: the last sizes of each row, and the alerts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from probe.monitor.alerts.rows import Finding
from probe.monitor.alerts.tracks import size_of
from probe.monitor.judging import RunJudge
from probe.monitor.monitor_run import Follower, MonitorRun

_KEPT = 40
"""Sizes of each row, for its line."""
_MOST_ALERTS = 1000
"""Alerts of a job that are kept; a guess."""
_BARS = "▁▂▃▄▅▆▇█"

RowName = tuple[int, str, str, int]
"""Rank, family, name, micro step."""


@dataclass(frozen=True)
class LiveRow:
    """A row as it is shown."""

    rank: int
    family: str
    name: str
    size: float
    usual: float
    """The median of the sizes that are kept."""
    deviation: float
    """Decades between both."""
    line: str
    """The last sizes as bars."""


class LiveState:
    """Follows a folder.

    A step is judged when a later step has rows, because its own may still be written.
    """

    def __init__(self, path: str) -> None:
        self.follower = Follower(path)
        self.findings: deque[Finding] = deque(maxlen=_MOST_ALERTS)
        self.sizes: dict[RowName, deque[float]] = {}
        self.steps: dict[int, int] = {}
        """The last step of each rank."""
        self._judge = RunJudge()
        self._waiting: dict[int, list[MonitorRun]] = {}

    def update(self, is_last: bool = False) -> list[Finding]:
        """Read on and judge; gives the findings that are new.

        Args:
            is_last: The last step is complete, too.

        Raises:
            FileCheckException: the folder holds no rows yet.
        """
        added = self.follower.read_on()
        for step in added.steps:
            self._waiting.setdefault(step, []).append(added)
        ready = sorted(self._waiting)
        if not is_last:
            ready = [step for step in ready if step < max(self._waiting)]
        found: list[Finding] = []
        for step in ready:
            found += self._take(step, self._waiting.pop(step))
        self.findings.extend(found)
        return found

    def _take(self, step: int, parts: list[MonitorRun]) -> list[Finding]:
        rows = [each for run in parts for rank in run.ranks for each in run.rows(rank, step)]
        for each in rows:
            self.steps[each.rank] = step
            sizes = size_of(each)
            if sizes is None:
                continue
            for row, name in enumerate(each.names):
                if each.judged is None or each.judged[row]:
                    key = each.rank, each.family, name, 0 if each.micro is None else each.micro[row]
                    self.sizes.setdefault(key, deque(maxlen=_KEPT)).append(float(sizes[row]))
        return self._judge.judge(rows)

    def most_deviating(self, number: int) -> list[LiveRow]:
        """The rows that are farthest from their usual size."""
        rows = sorted(self._rows(), key=lambda each: -each.deviation)
        return rows[:number]

    def _rows(self) -> Iterator[LiveRow]:
        for (rank, family, name, _), sizes in self.sizes.items():
            last = sizes[-1]
            finite = sorted(size for size in sizes if math.isfinite(size))
            usual = finite[len(finite) // 2] if finite else math.nan
            if not math.isfinite(last):
                deviation = math.inf
            elif last > 0 and usual > 0:
                deviation = abs(math.log10(last / usual))
            else:
                deviation = 0.0 if last == usual else math.inf
            yield LiveRow(rank, family, name, last, usual, deviation, sparkline(list(sizes)))


def sparkline(sizes: list[float]) -> str:
    """Sizes as bars on a log scale; ``!`` where one is not finite.

    Example:
        >>> sparkline([1.0, 10.0, 100.0, float("nan")])
        '▁▅█!'
    """
    logs = [math.log10(size) if math.isfinite(size) and size > 0 else None for size in sizes]
    known = [each for each in logs if each is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    # Noise of some percent is a flat line.
    width = max(high - low, 0.1)
    found = []
    for size, each in zip(sizes, logs):
        if each is None:
            found.append("_" if size == 0 else "!")
        else:
            found.append(_BARS[min(len(_BARS) - 1, round((each - low) / width * (len(_BARS) - 1)))])
    return "".join(found)
