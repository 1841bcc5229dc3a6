"""The judgement of an output beside its peers: what is usual of them, and what chance explains."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from statistics import NormalDist, median
from typing import NamedTuple

from probe.common.dump.naming import is_forward
from probe.compare.divergence.peers.fits import Member, fits, spread_of
from probe.compare.result import Mode

FEWEST = 5
"""The fewest peers, the call itself included, that tell what is usual."""
_FALSE_ALARMS = 0.01
"""The share of right runs in which a call may leave its peers by chance."""
_DEVIATION = 0.55
"""The standard deviation of the logarithm of q that statistics give, tails included.

Chosen with the right pairs in two precisions that are recorded, and with nothing else.
"""
_DEVIATION_OF_TENSORS, _DEVIATION_OF_GRADIENTS = 0.4, 0.6
"""The same where the values themselves are compared, of forward calls and of all others, chosen in the same way."""
_DEVIATION_OF_WALK = 0.6
"""The same of the random walk, where nothing is fitted. A guess."""
_FEWEST_OF_SPREAD = 20
"""The fewest errors that tell how far errors of a run spread; of so many the spread is known to about a fifth."""
_GROWN = 1.1
"""The factor by which the errors grow in number until their spread is taken anew."""
UNRELATED = 0.3
"""The relative error of inputs from which on two calls compute with other numbers. A guess."""
DECIDED = 0.5
"""The relative error that chance has to leave unexplained for an output to be judged by it. A guess.

A wrong weight makes an error of about the size of the output, of which statistics show a part.
"""


class Leaving(NamedTuple):
    """An output beside its peers, which it leaves if its error is larger than what chance explains."""

    error: float
    """Its relative error."""
    usual: float
    """The relative error that is usual for its inputs."""
    allowed: float
    """The largest relative error that chance explains."""
    peers: int
    """The number of peers."""
    at_most: float = 0.0
    """The relative error up to which the errors of this run, or its inputs, may explain it, if that is larger."""

    @property
    def most(self) -> float:
        """The largest relative error that anything explains."""
        return max(self.allowed, self.at_most)


def deviations_of(number: int) -> float:
    """The number of standard deviations that one of so many calls exceeds once in a hundred runs."""
    return NormalDist().inv_cdf(1.0 - _FALSE_ALARMS / max(1, number))


def largest_by_chance(number: int) -> float:
    """The ratio of the largest relative error of so many to the usual one, which one right run in a hundred exceeds."""
    return math.exp(deviations_of(number) * _DEVIATION)


def decides(judged: Leaving, share: float = 1.0) -> bool:
    """True if an output of which a part with this share is another differs by more than chance explains.

    What is usual of peers was measured, so that all that is less than the output itself counts as known.
    """
    return judged.most < share * (1.0 if judged.peers else DECIDED)


def in_group(members: Sequence[Member], largest: float) -> dict[int, Leaving]:
    """The members of a group with what chance explains of them, in its order of execution."""
    # An input that has little to do with the other side's tells nothing of what errors do.
    usable = [each for each in members if each.inputs < UNRELATED]
    tried = fits(usable if len(usable) >= FEWEST else members)
    found: dict[int, Leaving] = {}
    before: list[float] = []
    for each in members:
        insort(before, each.inputs)
        if each.inputs >= UNRELATED:
            continue
        # The statistics of inputs may show less than there is, by chance; a third of what is usual is rare.
        inputs = max(each.inputs, before[len(before) // 2] / 3.0)
        usual = max(one.expected(each, inputs) for one in tried)
        if not is_forward(each.call.record or ""):
            # A backward is linear: independent errors of what comes back are carried on as what comes back is. Of few
            # peers, statistics may show less of them in what goes out than in what goes in.
            usual = max(usual, math.hypot(each.inputs, each.own))
        allowed = largest * usual
        found[id(each.row)] = Leaving(each.error, usual, allowed, len(members) - 1)
    return found


def of_walk(member: Member, group: Sequence[Member], deviations: float) -> Leaving | None:
    """The judgement of a forward output without peers, or of the first of peers that all leave the random walk."""
    if not is_forward(member.call.record or "") or member.inputs >= UNRELATED:
        return None
    largest = math.exp(deviations * _DEVIATION_OF_WALK)
    allowed = largest * member.walk
    if len(group) >= FEWEST:
        if member is not group[0] or member.error <= allowed:
            return None
        usable = [each.error / each.walk for each in group if each.inputs < UNRELATED]
        if len(usable) < FEWEST or median(usable) <= largest:
            return None
    return Leaving(member.error, member.walk, allowed, len(group) - 1 if len(group) >= FEWEST else 0)


def widened(members: Iterable[Member], found: dict[int, Leaving], deviations: float) -> dict[int, Leaving]:
    """The judgements with the spread that the errors of these runs have before them, where that is larger.

    A network with few elements for each statistic of a batch norm, or with channels that hardly vary, has errors of
    all sizes. The variance of a median of n, pi / (2 n) that of one, is added: of few, what is usual is not known
    well.
    """
    before: dict[bool, list[float]] = {True: [], False: []}
    spreads: dict[bool, tuple[int, float]] = {True: (0, 0.0), False: (0, 0.0)}
    wider: dict[int, Leaving] = {}
    for member in members:
        judged = found.get(id(member.row))
        if judged is None or not judged.usual:
            continue
        direction = is_forward(member.call.record or "")
        logs = before[direction]
        if judged.error > judged.allowed:
            number, spread = spreads[direction]
            if len(logs) >= max(_FEWEST_OF_SPREAD, _GROWN * number):
                spread = spread_of(logs)
                spreads[direction] = len(logs), spread
            deviation = max(math.log(judged.allowed / judged.usual), deviations * spread)
            of_median = math.sqrt(1.0 + math.pi / 2.0 / (judged.peers + 1))
            # What a random walk makes of these inputs, give or take a deviation, shows nothing of the call.
            of_walk = member.walk * math.exp(_DEVIATION)
            most = max(judged.usual * math.exp(deviation * of_median), of_walk)
            wider[id(member.row)] = judged._replace(at_most=most)
        logs.append(math.log(max(judged.error, member.own) / judged.usual))
    return {**found, **wider}


def ratio_by_chance(member: Member, mode: Mode, deviations: float) -> float:
    """The ratio of the largest error that chance explains to the usual one."""
    if mode is not Mode.TENSOR:
        return math.exp(deviations * _DEVIATION)
    of_tensors = _DEVIATION_OF_TENSORS if is_forward(member.call.record or "") else _DEVIATION_OF_GRADIENTS
    return math.exp(deviations * of_tensors)
