"""The step of the optimizer between two steps: which parameters it moved otherwise than their gradients explain.

The update of a parameter is what it holds at the beginning of a step less what it held at the beginning of the step
before: the difference of two sketches. It is explained by the distance of the gradients that it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from probe.common.align.row import Row
from probe.common.dump.naming import PARAMETERS_GRAD, parse
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.sketch_file import SketchTable
from probe.common.numerics.error_bounds import SAFETY, extent
from probe.common.numerics.formats import unit_roundoff
from probe.compare.sentences import NOTHING, Sentence
from probe.compare.verdict.optimizer import Moved, Steps, optimizer_cause
from probe.compare.verdict.two_runs import TwoRuns, path_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PARAMETER = "parameter:"
_NORMALISED = 4.0
"""An optimizer that normalises gradients moves an element by its sign. With a relative error e of Gaussian gradients a
share of 0.8 e of the elements turns, and the updates are 1.8 sqrt(e) apart; twice that, for gradients with more
elements near zero."""
_OF_NORMS = 1.3
"""By how much the norms of two updates may seem to differ though they are one: three times the 9 % of a sketch."""
_OF_ROUNDING = 2.0**-23
_OF_SUMS = 2.0**-16
"""The rounding of the sums that make a gradient, about, relative to the gradient; a guess."""


class Update(NamedTuple):
    """The update of one parameter in both runs."""

    name: str
    golden_name: str
    distance: float
    """The distance of the two updates."""
    of_gradients: Optional[float]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The distance of the gradients; ``None`` where they are not recorded."""
    ratio: float
    """The norm of the target's update divided by that of the golden run's."""
    allowed: float
    moved: Moved
    """The sketches."""

    @property
    def is_explained(self) -> bool:
        """True if the gradients explain the update."""
        return self.distance <= self.allowed

    @property
    def has_other_size(self) -> bool:
        """True if one update is larger than the other by more than sketches leave open."""
        return not 1 / _OF_NORMS <= self.ratio <= _OF_NORMS


class Between(NamedTuple):
    """The updates of all parameters between two steps."""

    updates: Mapping[str, Update]
    """By the target's names of the parameters."""
    steps: tuple[Steps, Steps] = ((), ())
    """The steps of the optimizers in target and golden run."""
    frameworks: tuple[str, str] = ("", "")
    sides: Sequence[_Side] = ()
    """The parameters and gradients of target and golden run."""

    def accumulated(self, row: Row) -> Sentence:
        """The sentence on a gradient to which that of the step before is added; `NOTHING` if it is not."""
        import numpy as np

        if row.target is None or row.golden is None or len(self.sides) < 2:
            return NOTHING
        names = row.target.name, row.golden.name
        now = [side.now(name) for side, name in zip(self.sides, names)]
        for index, run in enumerate(("target", "golden run")):
            mine, theirs, kept = now[index], now[1 - index], self.sides[index].then(names[index])
            if mine is None or theirs is None or kept is None or not kept.any():
                continue
            rest = float(np.linalg.norm(mine - theirs - kept))
            unit = max(unit_roundoff(row.target.dtype), unit_roundoff(row.golden.dtype))
            if rest <= SAFETY * max(unit, _OF_SUMS) * float(np.linalg.norm(mine)) < float(np.linalg.norm(kept)):
                text = f"gradients are accumulated in the {run}"
                return Sentence(f"{text}: that of the step before is added, not zeroed (zero_grad)")
        return NOTHING

    @property
    def is_of_all(self) -> bool:
        """True if most updates are unexplained: it is the optimizer and not a parameter."""
        return 2 * sum(not each.is_explained for each in self.updates.values()) > len(self.updates)

    def in_words(self) -> Sentence:
        """The difference of the optimizers, where nothing says why; `NOTHING` if it is no more than one parameter."""
        apart = [each for each in self.updates.values() if not each.is_explained]
        names = {each.name: each.golden_name for each in self.updates.values()}
        cause = optimizer_cause(self.steps, {each.name: each.moved for each in apart}, names, self.frameworks)
        if cause:
            start = "the optimizer step before this step diverges"
            return Sentence(f"{start}: {cause.text}", f"{start}: {cause.shown}")
        if 2 * len(apart) <= len(self.updates):
            return NOTHING
        ratios = sorted(each.ratio for each in apart)
        middle = ratios[len(ratios) // 2]
        alike = sum(math.isclose(each, middle, rel_tol=_OF_NORMS - 1.0) for each in ratios)
        what = f"updates are {middle:.3g} times those of the golden run in {alike} of {len(self.updates)} parameters"
        if math.isclose(middle, 1.0, rel_tol=_OF_NORMS - 1.0):
            what = f"updates differ in {len(apart)} of {len(self.updates)} parameters"
        return Sentence(f"the optimizer step before this step diverges: {what}")

    def excuses(self, name: str) -> bool:
        """True if a parameter that differs does so by its gradient, which is rounding in some of its elements."""
        update = self.updates.get(name)
        if update is None:
            return False
        return update.is_explained or not (update.has_other_size or self.is_of_all)


def between(runs: TwoRuns, before: tuple[str, str] | None) -> Between | None:
    """The updates between the step before and this one; ``None`` where they are not known.

    Args:
        runs: the runs in this step.
        before: the paths of their dumps of the step before.
    """
    if before is None or runs.tables is None:
        return None
    dumps = tuple(map(read, before))
    of_before = tuple(dump.sketches for dump in dumps)
    if None in of_before:
        return None
    pairs = _pairs(runs)
    elements = _elements(runs)
    updates: dict[str, Update] = {}
    sides = [_Side(now, then, dump) for now, then, dump in zip(runs.tables, of_before, dumps) if then is not None]
    for name, golden_name in pairs.items():
        found = _update(name, golden_name, sides, runs.precision.shortest, elements.get(name, 0))
        if found is not None:
            updates[name] = found
    steps = dumps[0].updates, dumps[1].updates
    return Between(updates, steps, runs.frameworks, sides) if updates else None


def _pairs(runs: TwoRuns) -> dict[str, str]:
    """The names of the parameters that both runs have, in the order in which calls take them."""
    found: dict[str, str] = {}
    for call in runs.calls:
        if not call.is_of_both or not call.is_forward:
            continue
        for row in call.inputs:
            if row.target is None or row.golden is None or row.relative_difference is None:
                continue
            sources = runs.sources(row)
            if all(each.origin.value == "parameter" and not each.is_view for each in sources):
                found.setdefault(sources[0].name, sources[1].name)
    return found


def _elements(runs: TwoRuns) -> dict[str, int]:
    found: dict[str, int] = {}
    for call in runs.calls:
        for row in call.inputs if call.is_forward else ():
            if row.target is not None and row.target.is_tensor:
                source = runs.graphs[0].source(row.target)
                if source.origin.value == "parameter" and not source.is_view:
                    found.setdefault(source.name, extent(row.target.shape).elements)
    return found


class _Side:
    """The parameters and gradients of one run, at the beginning of two steps."""

    def __init__(self, now: SketchTable, then: SketchTable, before: Dump) -> None:
        self._now, self._then = now, then
        self._items = now.first_of(_PARAMETER), then.first_of(_PARAMETER)
        self._gradients = {_parameter_of(name): name for name in then.names() if PARAMETERS_GRAD in name}
        self._taken = {each.name: each.gradient for update in before.updates for each in update.parameters}

    def now(self, item: str) -> NDArray[Any] | None:
        """The sketch of an item in this step; ``None`` where it has none."""
        return _of_item(self._now, item)

    def then(self, item: str) -> NDArray[Any] | None:
        """The sketch of an item of this name in the step before; ``None`` where it has none."""
        return _of_item(self._then, item)

    def update(self, name: str) -> tuple[NDArray[Any], float] | None:
        """The sketch of the update of a parameter, and the norm of the parameter; ``None`` where it is not known."""
        import numpy as np

        items = [of_step.get(name) for of_step in self._items]
        if None in items:
            return None
        after, earlier = (
            table.sums([item])[0].astype(np.float64) for table, item in zip((self._now, self._then), items) if item
        )
        return after - earlier, float(np.linalg.norm(after))

    def parameter(self, name: str) -> NDArray[Any]:
        """The sketch of a parameter before the update."""
        import numpy as np

        found: NDArray[Any] = self._then.sums([self._items[1][name]])[0].astype(np.float64)
        return found

    def gradient(self, name: str) -> NDArray[Any] | None:
        """The sketch of the gradient that a parameter had; ``None`` where it is not known."""
        taken = self._taken.get(name)
        if taken is not None:
            return taken.sums
        item = self._gradients.get(name)
        return None if item is None else self._then.sums([item])[0]


def _of_item(table: SketchTable, item: str) -> NDArray[Any] | None:
    import numpy as np

    found: NDArray[Any] = table.sums([item])[0].astype(np.float64)
    return found if np.isfinite(found).all() else None


def _parameter_of(item: str) -> str:
    """The name of the parameter whose gradient an item is."""
    record, _, name = item.rpartition(".")
    path = path_of(parse(record))
    return f"{path}.{name}" if path else name


def _update(name: str, golden_name: str, sides: list[_Side], roundoff: float, elements: int) -> Update | None:
    import numpy as np

    of_target, of_golden = (side.update(own) for side, own in zip(sides, (name, golden_name)))
    if of_target is None or of_golden is None:
        return None
    (mine, size), (theirs, golden_size) = of_target, of_golden
    parameter = sides[1].parameter(golden_name)
    sizes = float(np.linalg.norm(mine)), float(np.linalg.norm(theirs))
    largest = max(sizes)
    if not largest or largest != largest:
        return None
    gradient, golden_gradient = (side.gradient(own) for side, own in zip(sides, (name, golden_name)))
    of_gradients: float | None = None
    both: tuple[NDArray[Any], NDArray[Any]] | None = None
    if gradient is not None and golden_gradient is not None:
        both = one, other = gradient.astype(np.float64), golden_gradient.astype(np.float64)
        norm = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
        of_gradients = float(np.linalg.norm(one - other)) / norm if norm else 0.0
    lost = max(roundoff, _OF_ROUNDING) * 2.0 * max(size, golden_size) / largest
    explained = 0.0 if of_gradients is None else max(SAFETY * of_gradients, _NORMALISED * math.sqrt(of_gradients))
    distance = float(np.linalg.norm(mine - theirs)) / largest
    ratio = sizes[0] / sizes[1] if sizes[1] else math.inf
    moved = Moved((mine, theirs), parameter, both, elements)
    return Update(name, golden_name, distance, of_gradients, ratio, explained + lost, moved)
