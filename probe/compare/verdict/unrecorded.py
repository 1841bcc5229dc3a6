"""Inputs that no recorded call made, and the errors that code without a record may have handed on to them.

Such code computes from what was recorded before: from what the calls in the same module returned, and from what that
module takes. The errors of these explain those of an input as far as they are as large.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from probe.common.align.calls import Row
from probe.common.dump.naming import OPTIMIZER
from probe.common.numerics.error_bounds import ALTOGETHER, rms
from probe.compare.verdict.facts import Call, distance, is_parameter, is_rounded
from probe.compare.verdict.other_elements import OtherElements
from probe.compare.verdict.two_runs import GIVEN, Origin, TwoRuns


class _Module(NamedTuple):
    """The errors of what a module takes."""

    record: str
    is_forward: bool
    largest: float
    """The largest distance of an input that is recorded."""
    absolute: float
    """The largest error of an element of one, in units of the elements."""
    takes_unrecorded: bool
    """True if code without a record made an input, so that what is around the module counts as well."""
    smallest: float
    """The least root mean square of such an input; 0 without one."""


class UnrecordedInputs:
    """Tells which inputs no recorded call made, and how far apart what they are made from is.

    Calls are asked for in their order. What was asked of the modules around one is kept for the next, so that a call
    takes as long in a module that is thousands deep as in one at the top.

    Args:
        runs: the runs.
        follows: true if the step before is compared as well, so that what it wrote is judged there.
    """

    def __init__(self, runs: TwoRuns, follows: bool) -> None:
        self._runs = runs
        self._follows = follows
        self._inside: dict[str | None, float] = {}
        """The largest distance of what calls inside each module returned so far."""
        self._inside_absolute: dict[str | None, float] = {}
        """The largest error of an element there, in units of the elements."""
        self._largest = {True: 0.0, False: 0.0}
        """The largest distance of any result so far, of the forward and of the rest."""
        self._at_the_end = 0.0
        """The distance of what the last call outside of all modules returned in the forward."""
        self._path: list[_Module] = []
        """The modules around the last call that was asked for, and those around an earlier one, the outermost first."""
        self._depth: dict[str, int] = {}
        """The index of each of them there."""
        self._around: list[tuple[float, bool]] = []
        """For each of the first of them, the largest distance of what was recorded in and around it, and whether what
        was recorded outside of all modules counts as well."""

    # --- what was recorded so far

    def inside(self, record: str | None) -> float:
        """The largest distance of what calls inside of a module returned so far."""
        return self._inside.get(record, 0.0)

    def end(self, largest: float) -> None:
        """Take in what a call of the forward outside of all modules returned, which may be the last one."""
        # Without a call tree nobody knows which results are the last.
        self._at_the_end = max(largest, 0.0 if self._runs.trees[0] else self._at_the_end)

    def add(self, call: Call, largest: float, absolute: float) -> None:
        """Take in the largest distance of what a call returned, and that in units of the elements."""
        parent = self._runs.parent(call)
        self._inside[parent] = max(self._inside.get(parent, 0.0), largest)
        self._inside_absolute[parent] = max(self._inside_absolute.get(parent, 0.0), absolute)
        self._largest[call.is_forward] = max(self._largest[call.is_forward], largest)
        depth = self._depth.get(parent or "")
        if depth is not None:
            del self._around[depth:]

    # --- the base of an input

    def base(self, call: Call, row: Row) -> float:
        """The distance of what was recorded before and may have made an input that no recorded call made.

        What cancels in it has the errors of its terms.
        """
        gradient = self._gradient(row)
        if gradient is not None:
            return distance(gradient)
        parent = self._runs.parent(call) or ""
        if parent not in self._runs.by_record:
            return self._outside(call.is_forward)
        size = 0.0 if row.golden is None else rms(row.golden)
        depth = self._enter(parent)
        found, counts_outside = self._around[depth]
        if counts_outside:
            found = max(found, self._outside(self._path[0].is_forward))
        return max(found, self._absolute(self._path[depth]) / size if size else 0.0)

    def _gradient(self, row: Row) -> Row | None:
        """The recorded gradient that an input is; ``None`` of any other."""
        source = None if row.target is None else self._runs.graphs[0].source(row.target)
        return self._runs.gradients.get(source.name) if source and source.origin is Origin.GRADIENT else None

    def _outside(self, is_forward: bool) -> float:
        # The gradient of the loss is made from the last results.
        return self._largest[True] if is_forward else max(self._largest[False], self._at_the_end)

    def _absolute(self, module: _Module) -> float:
        return max(self._inside_absolute.get(module.record, 0.0), module.absolute)

    def _enter(self, record: str) -> int:
        """Work out `_around` up to a module; returns its index."""
        if record not in self._depth:
            above: list[str] = []
            name = record
            while name in self._runs.by_record and name not in self._depth:
                above.append(name)
                name = self._runs.parent(self._runs.by_record[name]) or ""
            keep = self._depth.get(name, -1) + 1
            for left in self._path[keep:]:
                del self._depth[left.record]
            del self._path[keep:], self._around[keep:]
            for name in reversed(above):
                self._depth[name] = len(self._path)
                self._path.append(self._module(name))
        depth = self._depth[record]
        for index in range(len(self._around), depth + 1):
            self._around.append(self._at(index))
        return depth

    def _at(self, index: int) -> tuple[float, bool]:
        module = self._path[index]
        found = max(self._inside.get(module.record, 0.0), module.largest)
        if not module.takes_unrecorded:
            return found, False
        if not index:
            return found, True
        around, counts_outside = self._around[index - 1]
        if module.smallest:
            around = max(around, self._absolute(self._path[index - 1]) / module.smallest)
        return max(found, around), counts_outside

    def _module(self, record: str) -> _Module:
        module = self._runs.by_record[record]
        largest = absolute = 0.0
        of_unrecorded: list[float] = []
        for each in module.inputs:
            if each.golden is None or not is_rounded(each) or distance(each) >= ALTOGETHER:
                continue
            gradient = self._gradient(each) if self.is_unrecorded(module, each) else None
            if gradient is not None:
                largest = max(largest, distance(gradient))
            elif self.is_unrecorded(module, each):
                of_unrecorded.append(rms(each.golden))
            else:
                largest = max(largest, distance(each))
                absolute = max(absolute, distance(each) * rms(each.golden))
        smallest = min(filter(None, of_unrecorded), default=0.0)
        return _Module(record, module.is_forward, largest, absolute, bool(of_unrecorded), smallest)

    def known_base(self, call: Call, row: Row) -> float | None:
        """The largest distance of what made an input of a forward, through calls that the target alone makes.

        It is ``None`` where a part of that is recorded on neither side.
        """
        found: list[float] = []
        waiting, seen = [(call, row)], {call.index}
        while waiting:
            taker, taken = waiting.pop()
            made = self._made_before(taker, taken)
            if made is not None:
                found.append(made)
                continue
            maker = self.maker_alone(taken)
            if maker is None:
                return None
            if maker.index not in seen:
                seen.add(maker.index)
                waiting += [(maker, each) for each in maker.inputs if each.target is not None and each.target.is_tensor]
        return max(found, default=None)

    def _made_before(self, call: Call, row: Row) -> float | None:
        """The distance of the result that an input is on one side at least; ``None`` if no call before returned it."""
        for side, item in enumerate((row.target, row.golden)):
            maker = None if item is None else self._runs.maker(item, side)
            if item is None or maker is None or maker.index >= call.index:
                continue
            made = self._runs.row_of_side(side).get(self._runs.graphs[side].source(item).name)
            if made is not None and made.relative_difference is not None and distance(made) < ALTOGETHER:
                return distance(made)
        return None

    # --- which inputs they are

    def is_of_code(self, call: Call, row: Row) -> bool:
        """True if code that is not recorded made an input, in one run at least."""
        of_code = any(each.origin is not Origin.CALL for each in self._runs.sources(row))
        return of_code and self.is_unrecorded(call, row)

    def is_lost(self, row: Row) -> bool:
        """True if an input is a gradient of a parameter that no record has: some are rounding alone."""
        source = None if row.target is None else self._runs.graphs[0].source(row.target)
        if source is None or source.origin is not Origin.GRADIENT:
            return False
        gradient = self._runs.gradients.get(source.name)
        return gradient is None or gradient.relative_difference is None

    def is_unrecorded(self, call: Call, row: Row) -> bool:
        """True if an input is neither data, a parameter nor a buffer, nor the counterpart of what a call returned."""
        if is_parameter(row) or row.target is None or row.golden is None:
            return False
        if (
            self._follows
            and self._runs.parent(call) == OPTIMIZER
            and self._runs.origin(0, row.target) is Origin.UNKNOWN
        ):
            return False  # The step before wrote the state of an optimizer.
        mine, theirs = self._runs.graphs[0].source(row.target), self._runs.graphs[1].source(row.golden)
        if mine.origin is theirs.origin and mine.origin in GIVEN:
            return False
        if mine.origin is not Origin.CALL or theirs.origin is not Origin.CALL:
            return True
        made = self._runs.row_of.get(mine.name)
        return made is None or made.golden is None or made.golden.name != theirs.name

    def maker_alone(self, row: Row) -> Call | None:
        """The call that made an input of the target, if the golden run has no counterpart of what it returned."""
        maker = None if row.target is None else self._runs.maker(row.target, 0)
        if maker is None or row.target is None:
            return None
        made = self._runs.row_of.get(self._runs.graphs[0].source(row.target).name)
        return maker if made is not None and made.golden is None else None

    @cached_property
    def other_elements(self) -> OtherElements:
        return OtherElements(self._runs)

    def takes_other_elements(self, call: Call, row: Row) -> bool:
        """True if code without a record makes an input of a call from choices that differ.

        The module around the call takes an index or a mask that recorded calls made, or a call in it before this one,
        such as a router, has chosen otherwise; or an index that follows from choices has taken as many elements.
        """
        if row.target is not None and row.target.name in self.other_elements.inputs:
            return True
        parent = self._runs.parent(call) or ""
        if self.other_elements.is_behind_a_choice(call, parent):
            return True
        module = self._runs.by_record.get(parent)
        return module is not None and any(
            distance(row) >= ALTOGETHER
            and all(self._runs.origin(side, item) is Origin.CALL for side, item in enumerate((row.target, row.golden)))
            for row in module.inputs
        )
