"""Choices of two runs: how many differ, and whether the distance of the values among which a call chose explains it.

A choice that differs takes `i` in one run and `j` in the other. These two values moved against each other by at least
the sum `s` of both margins: ``(t_i - t_j) + (g_j - g_i) >= margin_t + margin_g``. The two elements make ``s^2 / 2`` of
the squared distance of the values at least, and choices share no elements. So this distance is at least
``sqrt(sum(s^2) / 2)``; if it is smaller, something else has chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from probe.common.align.calls import Row
from probe.common.dump.choices import Choices
from probe.common.dump.sketch_file import SketchTable
from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import unit_roundoff
from probe.compare.result import Decision
from probe.compare.verdict.effects import draws
from probe.compare.verdict.facts import Call, Evidence, coarser, distance, is_compared, is_rounded
from probe.compare.verdict.two_runs import TwoRuns

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ABOVE = 1.29
"""The upper end of the interval of a sketched distance, see `probe.common.numerics.sketch.distance`."""
_LANES = 64
"""Elements up to which a sketch is exact."""


class Turned(NamedTuple):
    """The values among which a call chose, and what its choices ask of them; relative to their norm."""

    needed: float
    apart: float
    allowed: float
    """The upper end of the interval of the distance."""


def decisions(runs: TwoRuns) -> Iterator[Decision]:
    """The choices of every call that both runs made."""
    if runs.tables is None or not all(table.has_choices for table in runs.tables):
        return
    for call in runs.calls:
        for row in call.outputs if call.is_of_both and call.is_forward else ():
            found = decision(runs, call, row)
            if found is not None:
                yield found


def decision(runs: TwoRuns, call: Call, row: Row) -> Decision | None:
    """The choices that a result of a call is; ``None`` if it is none, or hands on those of another call."""
    pair = _pair(runs, row)
    if pair is None:
        return None
    mine, theirs = pair
    rows = differing(mine, theirs)
    number = int(rows.sum())
    turned = _turned(runs, call, mine, theirs, rows) if number else None
    found = Decision(
        call.record or "", call.golden_record or "", runs.module_name(call), number, len(rows), mine.made
    )  # fmt: skip
    if turned is not None:
        return replace(
            found, needed=turned.needed, apart=turned.apart, is_explained=turned.needed <= turned.allowed
        )  # fmt: skip
    # A call that draws chooses otherwise with another seed.
    is_certain = number and _takes_the_same(call) and not draws(runs, call)
    return replace(found, apart=0.0, is_explained=False) if is_certain else found


def _takes_the_same(call: Call) -> bool:
    """True if all tensors that a call takes are known to be the same in both runs."""
    rows = [row for row in call.inputs if any(item is not None and item.is_tensor for item in (row.target, row.golden))]
    return bool(rows) and all(row.relative_difference == 0.0 for row in rows)


def _pair(runs: TwoRuns, row: Row) -> tuple[Choices, Choices] | None:
    if runs.tables is None or row.target is None or row.golden is None or is_rounded(row):
        return None
    sides = list(zip(runs.tables, (row.target, row.golden)))
    mine, theirs = (table.choices(item.name) for table, item in sides)
    if mine is None or theirs is None or mine.indices.shape != theirs.indices.shape or mine.made != theirs.made:
        return None
    return None if all(_hands_on(table, item.name) for table, item in sides) else (mine, theirs)


def _hands_on(table: SketchTable, name: str) -> bool:
    """True if an item is what another call has chosen, as a module returns what a function in it returned."""
    maker = table.made_by(name)
    return maker is not None and maker != name and table.choices(maker) is not None


def differing(mine: Choices, theirs: Choices) -> NDArray[Any]:
    """True for each choice that differs; of a choice of several indices the order does not count."""
    import numpy as np

    found: NDArray[Any] = (np.sort(mine.indices, 1) != np.sort(theirs.indices, 1)).any(1)
    return found


def _turned(runs: TwoRuns, call: Call, mine: Choices, theirs: Choices, rows: NDArray[Any]) -> Turned | None:
    """Hold the margins of the choices that differ against the distance of the values; ``None`` if one is not known."""
    import numpy as np

    if mine.margins is None or theirs.margins is None:
        return None
    values = next((each for each in call.inputs if is_rounded(each) and is_compared(each)), None)
    moves = mine.margins[rows].astype(np.float64) + theirs.margins[rows]
    if values is None or values.golden is None or not np.isfinite(moves).all():
        return None
    norms = [item.norm for item in (values.target, values.golden) if item is not None and type(item.norm) is float]
    norm = max(filter(math.isfinite, norms), default=0.0)
    apart = distance(values)
    if not norm or not math.isfinite(apart):
        return None
    is_exact = runs.evidence is Evidence.ELEMENTS or extent(values.golden.shape).elements <= _LANES
    # The norm is rounded, and so are the sums of a sketch.
    allowed = apart * (1.0 if is_exact else _ABOVE) * (1.0 + 2.0 * coarser(values)) + 4.0 * unit_roundoff("float32")
    return Turned(math.sqrt(float(np.square(moves).sum()) / 2.0) / norm, apart, allowed)
