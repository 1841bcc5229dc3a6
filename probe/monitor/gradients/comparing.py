"""Two runs compared by the signs of their gradients: share of equal signs, and the steps that are suspicious."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from probe.common.errors import MsprobeException
from probe.monitor.gradients.files import GradientFiles, probed_ranks

LEAST_AT_FIRST = 0.97
"""msProbe's rule of thumb, as documented: less in the first step is suspicious."""
LARGEST_FALL = 0.03
"""Likewise: so is a fall by more than this from one step to the next."""
_MOST_SHOWN = 5


class Suspicion(NamedTuple):
    """A step at which the signs of a gradient agree less than they should."""

    rank: int
    step: int
    parameter: str
    similarity: float
    before: float | None
    """The similarity in the step before; ``None`` in the first one."""

    def text(self) -> str:
        """One sentence."""
        reason = f"at least {LEAST_AT_FIRST} is expected in the first step"
        if self.before is not None:
            reason = f"it was {self.before:.4f} in the step before, and a fall by {LARGEST_FALL} is allowed"
        where = f"rank {self.rank}, step {self.step}: {self.parameter}"
        return f"{where} has a similarity of {self.similarity:.4f}; {reason}."


@dataclass
class RankSimilarity:
    """The similarities of one rank.

    Args:
        rank: The number.
        steps: The steps that both runs have, ascending.
        parameters: The names, in the order of the tables.
        similarity: By step and parameter, the share of elements whose signs are equal.
        total: By step, the share over all parameters, each weighted by its elements.
    """

    rank: int
    steps: Sequence[int]
    parameters: list[str] = field(default_factory=list)
    similarity: dict[tuple[int, str], float] = field(default_factory=dict)
    total: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def line(self, parameter: str | None) -> list[tuple[int, float]]:
        """The similarity of a parameter by step, or with ``None`` that of all."""
        if parameter is None:
            return sorted(self.total.items())
        found = self.similarity
        return [(step, found[step, parameter]) for step in self.steps if (step, parameter) in found]

    def suspicions(self) -> list[Suspicion]:
        """Suspicious steps of parameters, by step."""
        found = []
        for parameter in self.parameters:
            before: float | None = None
            for step, value in self.line(parameter):
                is_low = value < LEAST_AT_FIRST if before is None else before - value > LARGEST_FALL
                if is_low:
                    found.append(Suspicion(self.rank, step, parameter, value, before))
                before = value
        return sorted(found, key=lambda each: (each.step, self.parameters.index(each.parameter)))


def compare_runs(target: str, golden: str) -> list[RankSimilarity]:
    """Compare each rank that both runs have.

    Args:
        target, golden: The ``dump_path`` of each.

    Raises:
        MsprobeException: a path is no folder of the gradient probe, the runs have no rank or no step in common, or
            there are no signs, as with ``grad_level`` ``L0``.
    """
    one, other = _ranks_of(target), _ranks_of(golden)
    both = [rank for rank in one if rank in other]
    if not both:
        raise MsprobeException(f"{target} has {_text(one)} and {golden} has {_text(other)}; none is in both.")
    found = [_of_rank(rank, one[rank], other[rank]) for rank in both]
    left = sorted({*one, *other} - {*both})
    if left:
        found[0].notes.append(f"rank {', '.join(map(str, left))} is in one of the runs only, and is not compared.")
    return found


def _ranks_of(path: str) -> Mapping[int, GradientFiles]:
    if not isinstance(path, str) or not os.path.isdir(path):
        raise MsprobeException(f"{path!r} is no folder; allowed: the dump_path of a run with task grad_probe.")
    found = probed_ranks(path)
    if not found:
        allowed = "rank<R>/grad_summary_0.csv and more, which task grad_probe writes"
        raise MsprobeException(f"{path} has no tables of gradients; allowed: a folder with {allowed}.")
    return found


def _text(found: Mapping[int, GradientFiles]) -> str:
    return f"rank {', '.join(map(str, found))}"


def _of_rank(rank: int, one: GradientFiles, other: GradientFiles) -> RankSimilarity:
    mine_of, theirs_of = one.steps, other.steps
    steps = [step for step in mine_of if step in theirs_of]
    if not steps:
        raise MsprobeException(f"{one.folder} and {other.folder} have no step in common.")
    found = RankSimilarity(rank, steps)
    left = len({*mine_of, *theirs_of}) - len(steps)
    if left:
        found.notes.append(f"rank {rank}: {left} steps are in one of the runs only, and are not compared.")
    order: dict[str, None] = {}
    unlike: dict[str, None] = {}
    for step in steps:
        mine, theirs = one.shapes(step), other.shapes(step)
        equal_signs = elements = 0
        for parameter, shape in mine.items():
            if theirs.get(parameter) != shape:
                unlike[parameter] = None
                continue
            signs, others = one.signs(step, parameter, shape), other.signs(step, parameter, shape)
            if signs is None or others is None or not signs.size:
                continue
            order[parameter] = None
            equal = int(np.count_nonzero(signs == others))
            found.similarity[step, parameter] = equal / signs.size
            equal_signs, elements = equal_signs + equal, elements + signs.size
        unlike.update((name, None) for name in theirs if name not in mine)
        if elements:
            found.total[step] = equal_signs / elements
    found.parameters = list(order)
    if not order:
        text = f"{one.folder} and {other.folder} have no signs of a parameter in common"
        raise MsprobeException(f'{text}; collect both with "grad_level" "L1" or "L2".')
    if unlike:
        first = next(iter(unlike))
        text = f"{len(unlike)} parameters are in one of the runs only or have another shape, such as {first}"
        found.notes.append(f"rank {rank}: {text}; they are not compared.")
    return found


def lines_of(found: Sequence[RankSimilarity]) -> list[str]:
    """Text of a comparison: notes, and the suspicious steps, the earliest first."""
    suspicions = sorted((each for rank in found for each in rank.suspicions()), key=lambda each: each.step)
    steps = sum(len(rank.steps) for rank in found)
    lines = [note for rank in found for note in rank.notes]
    if not suspicions:
        return [*lines, f"no suspicious gradient in {steps} steps of {len(found)} ranks."]
    first = suspicions[0].text()
    lines.append(f"first suspicious gradient: {first}")
    lines += [each.text() for each in suspicions[1:_MOST_SHOWN]]
    left = len(suspicions) - _MOST_SHOWN
    return [*lines, f"{left} more are suspicious."] if left > 0 else lines
