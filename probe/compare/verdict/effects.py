"""The effect of a difference downstream: in what is computed from it, up to the end of the pass or the loss.

Two programs may hold other values for a while, a mask that is made elsewhere or another layout; where the next values
that both have agree, everything before them on that way agrees, however it was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from heapq import heappop, heappush

from probe.common.align.row import Row
from probe.common.numerics.error_bounds import extent
from probe.compare.verdict.dataflow import Origin
from probe.compare.verdict.facts import SHORT, Call, distance, is_rounded
from probe.compare.verdict.two_runs import TwoRuns

Agrees = Callable[[Call, Row, list[Row]], bool]
"""Tells if an output is as near to its counterpart as the other inputs of its call explain, which are given."""
HasNear = Callable[[Call], bool]
"""Tells if the other run holds nearly what a call of one side alone returns."""


class Effect(Enum):
    """The fate of a difference."""

    SHOWS = "shows"
    """The difference makes a value that both runs have differ, and stays."""
    NONE = "none"
    """The next values that both runs have agree, and would have shown it."""
    HIDDEN = "hidden"
    """The next values agree, and would agree with the difference in them as well."""


class Effects:
    """Follows what calls return.

    Args:
        runs: the runs.
        agrees: the judgement of values that both runs have.
        has_near: the judgement of values of calls that one side alone made.
        agrees_behind: the judgement of all that comes after a call, for where nobody knows what takes its results.
    """

    def __init__(self, runs: TwoRuns, agrees: Agrees, has_near: HasNear, agrees_behind: Callable[[Call], bool]) -> None:
        self._runs, self._agrees, self._has_near, self._agrees_behind = runs, agrees, has_near, agrees_behind

    def of(self, start: Call, size: float = 0.0) -> Effect:
        """The effect of what a call returns.

        Args:
            start: the call.
            size: the norm of the difference, in units of the elements; 0 where it is not known.
        """
        found = Effect.NONE
        seen: set[int] = {start.index}
        self._given = self._data_of(start)
        reached: tuple[set[str], set[str]] = (set(), set())
        # In the order of the calls, so that all that was reached is known where it comes together.
        waiting, is_apart = [(start.index, start)], False
        while waiting:
            _, call = heappop(waiting)
            outputs = [row for row in call.outputs if row.relative_difference is not None and is_rounded(row)]
            others = [] if call is start else self._others(call, reached)
            if outputs and all(self._agrees(call, row, others) for row in outputs):
                if not all(self._would_show(row, size) for row in outputs):
                    found = Effect.HIDDEN
                continue
            is_one = call.is_of_both and self._runs.same_names
            if not outputs and call is not start and not is_one and self._has_near(call):
                continue
            is_apart = is_apart or bool(outputs)
            for side in (0, 1):
                reached[side].update(self._makers(call, side))
            followers = [each for each in self._takers(call) if each.index not in seen]
            if self._runs.has_functions:
                # What a module returns is made by calls inside of it, which are recorded as well.
                followers = [each for each in followers if not each.is_module]
            if not followers:
                # Nothing that is recorded takes it: the module around it tells, or the pass has ended.
                around = next(iter(self._runs.around(call)), None)
                if around is None and (is_apart or (call is start and self._runs.same_names)):
                    return Effect.NONE if self._agrees_behind(start) else Effect.SHOWS
                followers = [] if around is None or around.index in seen else [around]
            seen.update(each.index for each in followers)
            for each in followers:
                heappush(waiting, (each.index, each))
        return found

    def _would_show(self, row: Row, size: float) -> bool:
        """True if a difference of a norm, added to a tensor, would be larger than what the two sides differ by.

        A layer on the way may make it larger or smaller; one that only adds it to something larger does not change it.
        A difference whose norm is not known is lost in a sum that is rounded to a short dtype.
        """
        norms = [item.norm for item in (row.target, row.golden) if item is not None and type(item.norm) is float]
        largest = max(norms, default=0.0)
        if not size:
            is_sum = row.golden is not None and extent(row.golden.shape).elements == 1
            return not (is_sum and self._runs.precision.unit(row) >= SHORT)
        return not largest or size / largest > 2.0 * distance(row)

    def _others(self, call: Call, reached: tuple[set[str], set[str]]) -> list[Row]:
        """The inputs of a call that do not come from calls that were reached."""
        found = []
        for row in call.inputs:
            is_reached = any(each.record in names for each, names in zip(self._runs.sources(row), reached))
            if not is_rounded(row) or is_reached:
                continue
            if row.target is None or self._runs.graphs[0].source(row.target).name not in self._given:
                found.append(row)
        return found

    def _data_of(self, call: Call) -> set[str]:
        """The data that a call takes and that differ, by their names in the target."""
        sources = (
            self._runs.graphs[0].source(row.target) for row in call.inputs if row.target is not None and distance(row)
        )
        return {source.name for source in sources if source.origin is Origin.DATA}

    def _makers(self, call: Call, side: int) -> dict[str, None]:
        """The records that made what a call returns: it, and for a module calls inside of it."""
        record = (call.record, call.golden_record)[side]
        if record is None:
            return {}
        found = {record: None}
        for row in call.outputs:
            item = (row.target, row.golden)[side]
            maker = None if item is None else self._runs.graphs[side].source(item).record
            if maker is not None:
                found[maker] = None
        return found

    def _takers(self, call: Call) -> Iterator[Call]:
        for side, calls in enumerate((self._runs.by_record, self._runs.by_golden_record)):
            for maker in self._makers(call, side):
                for name in self._runs.graphs[side].takers(maker):
                    found = calls.get(name)
                    if found is not None and found.is_forward == call.is_forward and found.index > call.index:
                        yield found
