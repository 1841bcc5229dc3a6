"""Effects of a difference downstream, equal values under other names, and calls that draw random numbers.

Two programs may hold other values for a while, a mask that is made elsewhere or another layout; where the next values
that both have agree, everything before them on that way agrees, however it was computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from probe.common.align.calls import Row
from probe.common.dump.naming import BACKWARD, FORWARD, api_name
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent, is_same
from probe.common.operations.function import Trait
from probe.common.operations.lookup import argument_name, has
from probe.compare.verdict.facts import SHORT, Call, distance, is_rounded
from probe.compare.verdict.two_runs import Origin, TwoRuns

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


# --- nearby


class Nearby:
    """Finds how near the nearest tensor of the golden run is.

    Args:
        runs: the runs; without sketches nothing is near.
    """

    def __init__(self, runs: TwoRuns) -> None:
        self._runs = runs
        self._found: dict[str, float] = {}

    def distance(self, item: Item) -> float:
        """The distance of a tensor of the target to the nearest one of the golden run; infinite if there is none."""
        found = self._found.get(item.name)
        if found is None:
            found = self._found[item.name] = self._distance(item)
        return found

    def _distance(self, item: Item) -> float:
        there = self._golden.get(extent(item.shape).elements)
        if there is None or self._runs.tables is None:
            return math.inf
        import numpy as np

        sketch = self._runs.tables[0].sums([item.name])[0].astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.sqrt(np.square(there - sketch).sum(1))
        size = float(np.linalg.norm(sketch))
        nearest = float(np.nanmin(apart)) if not np.isnan(apart).all() else math.inf
        return nearest / size if size else (0.0 if nearest == 0.0 else math.inf)

    @cached_property
    def _golden(self) -> dict[int, NDArray[Any]]:
        """The sketches of all results of the golden run, by the number of their elements."""
        import numpy as np

        names: dict[int, list[str]] = {}
        for call in self._runs.calls:
            if call.golden_record is None or not call.is_forward:
                continue
            for row in call.rows:
                item = row.golden
                if item is not None and item.is_tensor:
                    names.setdefault(extent(item.shape).elements, []).append(item.name)
        tables = self._runs.tables
        return {} if tables is None else {size: tables[1].sums(of).astype(np.float64) for size, of in names.items()}


# --- random numbers


def draws(runs: TwoRuns, call: Call) -> bool:
    """True if a call of a function or of a module draws random numbers."""
    name = call.function.lower()
    if has(name, Trait.DRAWS, Trait.DROPS, Trait.DRAWS_INSIDE):
        return True
    return has(name, Trait.MAY_DROP_INSIDE) and _drops_inside(runs, call)


_SHARES = ("p", "dropout", "dropout_p")
"""The names that functions and modules give to the share of elements that they set to zero at random."""


def _drops_inside(runs: TwoRuns, call: Call) -> bool:
    """True if a call is told to set a share of what it computes with to zero at random."""
    return any(_shares(runs, call, 0))


def draws_another_share(runs: TwoRuns, call: Call) -> bool:
    """True if the runs set another share of the elements to zero, so that no seed could make them alike."""
    one, other = _shares(runs, call, 0), _shares(runs, call, 1)
    return bool(one and other) and one != other


def _shares(runs: TwoRuns, call: Call, side: int) -> list[float]:
    """The shares of elements that a call of one run, the target or the golden one, sets to zero at random."""
    if call.is_module and call.parsed is not None:
        settings = runs.settings[side].get(call.parsed.base)
        values = [] if settings is None or not settings.training else list(map(settings.values.get, _SHARES))
    else:
        record = (call.golden_record if side else call.record) or ""
        items = (row.golden if side else row.target for row in call.inputs)
        values = [
            item.value
            for item in items
            if item is not None and argument_name(record, item.name.removeprefix(f"{record}.")) in _SHARES
        ]
    return [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]


_CHANCE = 1e-6
"""The chance of equal masks by luck up to which they come from one generator. A guess."""


def redraws(runs: TwoRuns, call: Call) -> bool:
    """True if a function's backward has other random numbers in one run, although its forward has the same in both.

    Elements of the forward's output that were kept in both runs show that. There are at least (norm / largest)^2.
    """
    if call.is_module or call.direction != BACKWARD or call.parsed is None:
        return False
    forward = runs.by_record.get(api_name(call.parsed.base, call.parsed.number, FORWARD))
    if forward is None or not (forward.is_of_both and forward.is_alike):
        return False
    shares = _shares(runs, forward, 0)
    if not shares or any(distance(row) for row in forward.rows):
        return False
    item = next((row.target for row in forward.outputs if row.target is not None and row.target.is_tensor), None)
    if item is None or type(item.norm) is not float or type(item.max) is not float or type(item.min) is not float:
        return False
    largest = max(abs(item.max), abs(item.min))
    return 0.0 < largest < math.inf and (1.0 - min(shares)) ** min((item.norm / largest) ** 2, 1e9) <= _CHANCE


def draws_on_one_side(call: Call) -> bool:
    """True if one side alone returns its argument as it is."""
    result = next((row for row in call.outputs if row.target is not None and row.golden is not None), None)
    taken = next((row for row in call.inputs if row.target is not None and row.golden is not None), None)
    if result is None or taken is None:
        return False
    sides = (taken.target, result.target), (taken.golden, result.golden)
    kept = [one is not None and other is not None and is_same(one, other) for one, other in sides]
    return kept[0] != kept[1]
