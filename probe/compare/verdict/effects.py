"""Whether a difference shows downstream: in what is computed from it, up to the end of the pass or the loss.

Two programs may hold other values for a while, a mask that is made elsewhere or another layout; where the next values
that both have agree, everything before them on that way agrees, however it was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from probe.common.align.row import Row
from probe.compare.verdict.facts import Call, is_rounded
from probe.compare.verdict.two_runs import TwoRuns

Agrees = Callable[[Call, Row, list[Row]], bool]
"""Tells if an output is as near to its counterpart as the other inputs of its call explain, which are given."""


HasNear = Callable[[Call], bool]
"""Tells if the other run holds nearly what a call of one side alone returns."""


def shows(runs: TwoRuns, start: Call, agrees: Agrees, has_near: HasNear) -> bool:
    """True if what a call returns makes a value that both runs have, is apart, and stays so.

    Args:
        runs: the runs.
        start: the call.
        agrees: the judgement of values that both runs have.
        has_near: the judgement of values of calls that one side alone made.
    """
    seen: set[int] = {start.index}
    waiting = [start]
    is_first, is_apart = True, False
    while waiting:
        call = waiting.pop()
        outputs = [row for row in call.outputs if row.relative_difference is not None and is_rounded(row)]
        others = [] if is_first else _others(runs, call, seen)
        if outputs and all(agrees(call, row, others) for row in outputs):
            continue
        if not outputs and not is_first and has_near(call):
            continue
        is_apart = is_apart or bool(outputs)
        followers = [each for each in _takers(runs, call) if each.index not in seen]
        if runs.has_functions:
            # What a module returns is made by calls inside of it, which are recorded as well.
            followers = [each for each in followers if not each.is_module]
        if not followers:
            # Nothing that is recorded takes it: the module around it tells, or the pass has ended.
            around = next(iter(runs.around(call)), None)
            if around is None and is_apart:
                return True
            followers = [] if around is None or around.index in seen else [around]
        seen.update(each.index for each in followers)
        waiting += followers
        is_first = False
    return False


def _others(runs: TwoRuns, call: Call, seen: set[int]) -> list[Row]:
    """The inputs of a call that do not come from the calls seen so far."""
    found = []
    for row in call.inputs:
        makers = [runs.maker(item, side) for side, item in enumerate((row.target, row.golden)) if item is not None]
        if is_rounded(row) and not any(maker is not None and maker.index in seen for maker in makers):
            found.append(row)
    return found


def _takers(runs: TwoRuns, call: Call) -> Iterator[Call]:
    for side, record, calls in ((0, call.record, runs.by_record), (1, call.golden_record, runs.by_golden_record)):
        graph = runs.graphs[side]
        # A module may return what a call inside of it made, which is known as the maker.
        makers = {record: None} if record is not None else {}
        for row in call.outputs if record is not None else ():
            item = (row.target, row.golden)[side]
            maker = None if item is None else graph.source(item).record
            if maker is not None:
                makers[maker] = None
        for name in (name for maker in makers for name in graph.takers(maker)):
            found = calls.get(name)
            if found is not None and found.is_forward == call.is_forward and found.index > call.index:
                yield found
