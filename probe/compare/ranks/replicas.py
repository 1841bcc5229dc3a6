"""Parameters that ranks have in common, and what became of their gradients on the way to the optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from probe.compare.ranks.combination import (
    Combination,
    Sketches,
    Sums,
    explanations,
    fits,
    largest_distance,
    origin,
    usual_factors,
)
from probe.compare.ranks.rank_facts import Part, RankFacts

_FEWEST = 4
"""Elements of a gradient of which it is asked what it is a multiple of."""


class Replica(NamedTuple):
    """A parameter that some ranks have with the same bits."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ReducedGradient:
    """The gradient of a replica as the optimizers of its ranks took it."""

    name: str
    ranks: tuple[int, ...]
    what: dict[int, Optional[Combination]]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """For each rank the combination of the ranks' gradients that it is; ``None`` if it is none, or cannot be told."""
    are_equal: bool
    """True if all ranks took the same gradient, up to rounding."""
    distance: float
    """The largest relative distance of what two ranks took."""
    micro_batches: int
    """The number of backwards that it was accumulated from on each rank."""
    is_of_same_data: bool
    """True if the ranks' own gradients, before a reduction, have the same bits and are not zero."""


@dataclass
class StepReplicas:
    """The replicas of one step."""

    equal: list[Replica] = field(default_factory=list)
    """The parameters that all ranks which have them have with the same bits."""
    apart: dict[str, float] = field(default_factory=dict)
    """The largest relative distance of two ranks, of the others."""
    gradients: list[ReducedGradient] = field(default_factory=list)
    """The gradients of the parameters that several ranks have with the same bits."""
    reduced_apart: list[str] = field(default_factory=list)
    """Parameters that differ between ranks whose optimizers took the same gradient, as those of replicas."""

    def add(self, shared: _Shared) -> None:
        """Take a parameter, with its gradients."""
        name, ranks = shared.name, shared.ranks
        if shared.is_equal:
            self.equal.append(Replica(name, tuple(each.rank for each in ranks)))
        else:
            self.apart[name] = largest_distance([part.sums for part in shared.parts])
            whole = _gradient(name, ranks)
            # Those of two parts of a model have nothing in common.
            if whole is not None and whole.are_equal and any(ranks[0].taken[name].sums):
                self.reduced_apart.append(name)
        gradients = (_gradient(name, group) for group in _groups(ranks, name))
        self.gradients += [each for each in gradients if each is not None]


def replicas_of(ranks: Sequence[RankFacts]) -> StepReplicas:
    """The parameters of a step, and their gradients.

    Parts of a split model have the same bits where all elements of a parameter are the same, such as zeros of a bias.
    Such parameters are replicas only where all others are, too.
    """
    found = StepReplicas()
    shared = [having for name in dict.fromkeys(name for each in ranks for name in each.parameters)
              if (having := _Shared.of(name, ranks)) is not None]  # fmt: skip
    varied = [each for each in shared if not each.is_constant]
    is_whole = bool(varied) and all(each.is_equal for each in varied)
    for each in shared if is_whole else varied:
        found.add(each)
    return found


@dataclass(frozen=True)
class _Shared:
    """A parameter that several ranks have by its name and shape."""

    name: str
    ranks: list[RankFacts]

    @classmethod
    def of(cls, name: str, ranks: Sequence[RankFacts]) -> _Shared | None:
        having = [each for each in ranks if name in each.parameters]
        shapes = {each.parameters[name].shape for each in having}
        return cls(name, having) if len(having) > 1 and len(shapes) == 1 else None

    @property
    def parts(self) -> list[Part]:
        return [each.parameters[self.name] for each in self.ranks]

    @property
    def is_constant(self) -> bool:
        return any(part.is_constant for part in self.parts)

    @property
    def is_equal(self) -> bool:
        first, *others = self.parts
        return all((first.sums == part.sums).all() for part in others)


def _groups(having: Sequence[RankFacts], name: str) -> Iterator[list[RankFacts]]:
    """The ranks that have a parameter with the same bits, if there are several."""
    groups: dict[bytes, list[RankFacts]] = {}
    for each in having:
        groups.setdefault(each.parameters[name].sums.tobytes(), []).append(each)
    yield from (group for group in groups.values() if len(group) > 1)


def _gradient(name: str, ranks: Sequence[RankFacts]) -> ReducedGradient | None:
    if not all(name in each.taken for each in ranks):
        return None
    local = Sketches({each.rank: each.local[name].sums for each in ranks if name in each.local})
    unit = max((each.local[name].unit for each in ranks if name in each.local), default=2.0**-24)
    taken = {each.rank: each.taken[name].sums for each in ranks}
    one = Sketches({0: next(iter(taken.values()))})
    is_asked, is_small = len(local) == len(ranks), ranks[0].taken[name].elements < _FEWEST
    # A factor that fits says nothing of one number, and little of two in a short dtype.
    find = _only_explanation if is_small else origin
    return ReducedGradient(
        name,
        tuple(taken),
        {rank: find(sums, local, rank, unit) if is_asked else None for rank, sums in taken.items()},
        all(fits(sums, one, Combination((0,), 1.0), unit) for sums in taken.values()),
        largest_distance(list(taken.values())),
        max(each.micro_batches.get(name, 0) for each in ranks),
        is_asked and all(sums.any() and (sums == local[ranks[0].rank]).all() for sums in local.values()),
    )


def _only_explanation(result: Sums, local: Mapping[int, Sums], own: int, unit: float) -> Combination | None:
    """The combination that a gradient of few elements is; ``None`` if it may be several, or a multiple."""
    found = explanations(result, local, own, unit)
    return found[0] if len(found) == 1 else None


def usual(gradients: Sequence[ReducedGradient]) -> Combination | None:
    """The combination that most gradients are; ``None`` if none was reduced over all of its ranks."""
    found = [what for each in gradients for what in each.what.values() if what is not None and what.ranks == each.ranks]
    counts = Counter(map(rounded, found))
    return counts.most_common(1)[0][0] if counts else None


def rounded(what: Combination) -> Combination:
    """The combination with a factor of three digits, so that those of two gradients can be the same."""
    if what.factor in usual_factors(len(what.ranks)):
        return what
    return what._replace(factor=float(f"{what.factor:.2e}"))
