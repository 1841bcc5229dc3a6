"""The step of the uninterrupted run at which the other one was resumed, and the pairs of dumps from there on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probe.common.align.dump_pairs import DumpPair
from probe.common.dump.reading.runs import DumpLocation, dumps_in
from probe.common.dump.sketch_file import table_in
from probe.common.errors import MsprobeException

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PARAMETER = "parameter:"
_SHOWN = 4
_CLOSE = 0.1
"""The relative distance of all parameters up to which two steps can be the same one: two models with other weights are
about 1.4 apart, a checkpoint in bfloat16 is 2e-3 away from its model."""
_BETTER = 0.9
"""A step whose parameters differ is taken only if its distance is at most this part of that of the next nearest one."""


@dataclass(frozen=True)
class MatchedSteps:
    """The steps of both runs that belong together."""

    pairs: list[DumpPair]
    """The resumed run is the target; step by step, and in each rank by rank."""
    first: tuple[int, int]
    """The first step of the resumed run, and that of the other one which it continues from."""
    distance: float
    """The relative distance of their parameters; 0 if these have the same sketches. NaN where the step was given."""
    earliest: int
    """The first recorded step of the uninterrupted run."""


def matched_steps(resumed: str, uninterrupted: str, at: int | None = None) -> MatchedSteps:
    """Match the steps of two runs by the parameters at their beginning.

    Args:
        resumed: the folder of the run that was resumed.
        uninterrupted: the folder of the other run.
        at: the step of the uninterrupted run that is the first one of the resumed run; found if it is not given.

    Raises:
        MsprobeException: there is no such step, or it cannot be told.
    """
    mine, theirs = _steps(resumed), _steps(uninterrupted)
    start = min(mine)
    distance = math.nan
    if at is None:
        at, distance = _found(mine[start], theirs, uninterrupted)
    elif at not in theirs:
        raise MsprobeException(f"{uninterrupted} has no step {at}; recorded are {', '.join(map(str, theirs))}.")
    offset = at - start
    pairs = [
        pair
        for step in sorted(mine)
        if step + offset in theirs
        for pair in _paired(step, mine[step], theirs[step + offset])
    ]
    return MatchedSteps(pairs, (start, at), distance, min(theirs))


def _steps(run: str) -> dict[int, list[DumpLocation]]:
    found: dict[int, list[DumpLocation]] = {}
    for each in dumps_in(run):
        if each.step is None:
            raise MsprobeException(f"{run}: no folder of a step is above {each.path}; give the folder of the run.")
        found.setdefault(each.step, []).append(each)
    return found


def _paired(step: int, mine: Sequence[DumpLocation], theirs: Sequence[DumpLocation]) -> list[DumpPair]:
    """The dumps of the ranks of both runs; of processes without ranks those in the same place."""
    others = {each.rank: each for each in theirs}
    has_ranks = all(each.rank is not None for each in (*mine, *theirs))
    partners = [others.get(each.rank) for each in mine] if has_ranks else list(theirs)
    if len(mine) != len(theirs) or None in partners:
        raise MsprobeException(
            f"step {step}: the resumed run has {len(mine)} processes and the other {len(theirs)}; both need the same "
            "ranks."
        )
    return [
        DumpPair(one.path, other.path, one.name if len(mine) > 1 else "", f"step{step}")
        for one, other in zip(mine, partners)
        if other is not None
    ]


def _found(first: Sequence[DumpLocation], theirs: Mapping[int, Sequence[DumpLocation]], run: str) -> tuple[int, float]:
    mine = _parameters(first[0].folder)
    distances = {
        step: found
        for step, dumps in theirs.items()
        if (found := _distance(mine, _parameters(dumps[0].folder))) is not None
    }
    ordered = sorted(distances, key=lambda step: distances[step])
    if not ordered:
        raise MsprobeException(
            f"the steps cannot be matched: the runs have no parameters with sketches in common; give --resumed-at the "
            f"step of {run} that the resumed run begins with."
        )
    nearest = ordered[0]
    alike = [step for step in ordered if distances[step] == distances[nearest]]
    if len(alike) > 1:
        raise MsprobeException(
            f"the steps cannot be matched: steps {', '.join(map(str, alike[:_SHOWN]))} of {run} begin with the same "
            "parameters, as where the learning rate is 0; give --resumed-at the step that the resumed run begins with."
        )
    is_clear = len(ordered) > 1 and distances[nearest] <= _BETTER * distances[ordered[1]]
    if distances[nearest] > _CLOSE or (distances[nearest] > 0 and not is_clear):
        raise MsprobeException(
            f"the steps cannot be matched: the parameters of the resumed run are {distances[nearest]:.1e} away from "
            f"those of step {nearest}, the nearest recorded one of {run}; record the step that it was resumed "
            "at, or give it with --resumed-at."
        )
    return nearest, distances[nearest]


def _parameters(folder: str) -> dict[str, NDArray[Any]]:
    """The sketches of the parameters at the beginning of a step, by their names."""
    table = table_in(folder)
    names = {} if table is None else table.first_of(_PARAMETER)
    return {} if table is None else dict(zip(names, table.sums(names.values()).astype("f8")))


def _distance(mine: Mapping[str, NDArray[Any]], theirs: Mapping[str, NDArray[Any]]) -> float | None:
    """The relative distance of all parameters together; ``None`` if they have none in common."""
    import numpy as np

    names = [name for name in mine if name in theirs]
    if not names:
        return None
    one, other = (np.stack([side[name] for name in names]) for side in (mine, theirs))
    apart, size = np.nansum(np.square(one - other)), max(np.nansum(np.square(one)), np.nansum(np.square(other)))
    return float(np.sqrt(apart / size)) if size else 0.0
