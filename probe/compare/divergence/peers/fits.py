"""The way of errors through the calls of a group: what a call carries on, and what it adds, fitted to its peers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, median_low
from typing import NamedTuple

from probe.common.align.row import Row
from probe.compare.divergence.aligned_calls import AlignedCall

_AS_GOOD = 0.25
"""The spread of q that a fit may have beyond the best one and explain a group as well. A guess."""
_CANCELLING = 4.0
"""The condition from which on what cancels may be what is usual of a group. A guess."""
_OF_MEDIAN = 1.4826
"""The ratio of the standard deviation of a normal distribution to the median of the absolute deviations."""


class Member(NamedTuple):
    """An output of a call, as one of its peers."""

    call: AlignedCall
    row: Row
    error: float
    """The relative error of the output."""
    inputs: float
    """The difference of all inputs together."""
    own: float
    """The error that one rounding adds, for the coarsest type that takes part."""
    condition: float
    """By how much what cancels increases the error of the inputs."""
    calls: int = 0
    """The number of calls inside of it, each of which rounds."""

    @property
    def walk(self) -> float:
        """The relative error that a random walk of roundings gives, which needs no peers."""
        return math.hypot(self.condition * self.inputs, self.own * math.sqrt(1.0 + self.calls))


class Fit(NamedTuple):
    """The way of errors through the calls of a group: the share that is carried on, and the part that is added."""

    carry: float
    own: float
    spread: float
    """The standard deviation of the logarithm of q."""
    cancels: bool = False
    """True if what they add grows with the condition: what is rounded is larger than what is left of it."""

    def expected(self, member: Member, inputs: float | None = None) -> float:
        """The relative error that is usual for a member, with its inputs or with `inputs` as their relative error."""
        own = self.own * member.condition if self.cancels else self.own
        carried = self.carry * (member.inputs if inputs is None else inputs)
        return math.sqrt(carried**2 + max(own, member.own) ** 2)


def fits(members: Sequence[Member]) -> list[Fit]:
    """The fits of carry and own rounding to a group; the members that leave it do not move them.

    Several explain a group of a few calls about equally well: the errors are carried on, or they are made by each call
    anew, and then they are those of the result or of larger terms that cancel. All of these are returned.
    """
    least = min(each.own for each in members)
    # The calls with the least error in their inputs show what each adds. Behind a fault all errors are large.
    clean = sorted(members, key=_by_inputs)[: max(3, len(members) // 3)]
    owns = {least, max(least, median_low(each.error for each in clean))}
    found = [_fit(members, own, False) for own in sorted(owns)]
    if max(each.condition for each in members) > _CANCELLING:
        found.append(_fit(members, median_low(each.error / each.condition for each in clean), True))
    best = min(each.spread for each in found)
    return [each for each in found if each.spread <= best + _AS_GOOD]


def _by_inputs(member: Member) -> float:
    return member.inputs


def _fit(members: Sequence[Member], own: float, cancels: bool) -> Fit:
    carries = [
        math.sqrt(max(0.0, each.error**2 - (own * each.condition if cancels else own) ** 2)) / each.inputs
        for each in members
        if each.inputs
    ]
    carry = median(carries) if carries else 0.0
    raw = Fit(carry, own, 0.0, cancels)
    logs = [math.log(max(each.error, each.own) / raw.expected(each)) for each in members]
    # The centre is brought to 1, which scales both.
    scale = math.exp(median(logs))
    return Fit(carry * scale, own * scale, spread_of(logs), cancels)


def spread_of(numbers: Sequence[float]) -> float:
    """The standard deviation of a normal distribution with the median of these numbers, and of their distances to it.

    Those that are far from the others do not move it.
    """
    middle = median(numbers)
    return _OF_MEDIAN * median(abs(each - middle) for each in numbers)
