"""Log-probabilities of processed logits: a temperature, penalties of repeated tokens, or top-p and top-k."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout.kinds.differences import SAMPLE, Differences
from probe.rollout.kinds.finding import LARGEST_ID, MOST_IDS, PENALTY, SPECIAL, TEMPERATURE, Finding

Array = NDArray[Any]
_FEWEST = 50
"""Tokens that are needed for a temperature; a guess."""
_CERTAIN = 6.0
"""Standard errors: what chance reaches once in 10^9 sets."""
_LEAST_SHARE = 0.3
"""Share of the squares of relative differences that a temperature or a penalty must explain. Errors of logits of one
nat explain a tenth by the choice of tokens alone, because the variance of the other side's log-probabilities grows by
theirs."""
_LEAST_CORRELATION = 0.9
"""Correlation of both sides. A temperature keeps the order of tokens, which errors of its size do not."""
_UNCERTAIN = 0.02
"""1 - p of a token that can tell a temperature. Of one that is nearly certain any change of the others' probability is
proportional to its log-probability; and softmax in a short dtype makes it 1."""
_ONE_SIDED = 0.95
"""Share of tokens with one sign, where rounding adds the others. A guess."""
_AGREES = 0.9
"""Share of the squares of all tokens that go their way."""
_CHANCE = math.log(1e6)
"""Against one that repeated tokens go their way by the chance that new ones do, which have six standard errors."""
_FEWEST_RAISED = 12
"""Tokens that have to be raised, of one id and others. A guess."""
_FEWEST_OF_ID = 3
"""Tokens of the raised id among them. A guess."""
_LARGEST = 3.0
"""A difference in nats. Larger ones are not what top-p leaves out, of which a twentieth of the probability stays."""


def temperature(differences: Differences) -> Finding | None:
    """A slope of the differences against log-probabilities: that of logits divided by a temperature.

    The derivative of a log-probability by the inverse temperature is the log-probability plus the entropy. Where the
    entropy is not given, its part is proportional to 1 - p for most tokens.
    """
    tokens, picked = differences.tokens, differences.sampled
    rollout, training = (side[picked].astype(np.float64) for side in (tokens.rollout, tokens.training))
    free = np.flatnonzero(differences.freedom[picked] > _UNCERTAIN)
    if len(free) < _FEWEST:
        return None
    middle, scale = (rollout + training) / 2, differences.scale[picked].astype(np.float64)
    relative = ((rollout - training) / scale)[free]
    whole = float(relative @ relative)
    if not whole:
        return None
    along, count = (middle / scale)[free], len(free)
    # A line with the part of the entropy, which is constant in this unit.
    total, of_along = float(relative.sum()), along - along.mean()
    square, product = float(of_along @ of_along), float(of_along @ relative)
    slope = product / square if square else 0.0
    share = (slope * product + total * total / count) / whole
    if tokens.entropy is not None:
        along = ((middle + tokens.entropy[picked]) / scale)[free]
        square, product = float(along @ along), float(along @ relative)
        if square and product * product > share * square * whole:
            slope, share = product / square, product * product / square / whole
    if share < _LEAST_SHARE or share * count < _CERTAIN**2 or _correlation(rollout, training) < _LEAST_CORRELATION:
        return None
    value, interval = _estimate(differences, rollout - training, middle, 1 - share)
    if value is None or (value < 1) != (slope > 0):
        return None
    # Two digits of the width of the interval.
    digits = 1 - math.floor(math.log10(min(max(interval[1] - interval[0], 1e-6), 0.1)))
    text = (
        f"the difference is proportional to the log-probability (this explains {100 * share:.0f} % of it), as if "
        f"the rollout had divided its logits by a temperature of {value:.{digits}f} "
        f"(95 % interval {interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
    )
    return Finding(TEMPERATURE, text, {"temperature": value, "interval": interval, "explained": share}, share)


def certain(differences: Differences) -> list[str]:
    """The remark that a temperature cannot be told, where nearly all tokens are certain."""
    count, free = len(differences.tokens), int(np.count_nonzero(differences.freedom > _UNCERTAIN))
    if count < _FEWEST or free >= _FEWEST:
        return []
    return [
        f"a temperature cannot be told: {count - free} of {count} tokens are nearly certain (probability above "
        f"{1 - _UNCERTAIN:g}), and {_FEWEST} others are needed"
    ]


def _estimate(
    differences: Differences, difference: Array, middle: Array, unexplained: float
) -> tuple[float | None, list[float]]:
    """The temperature and its interval.

    With the inverse temperature b of the rollout, the difference d of a token is (b - 1) (m + H), 0 in the mean
    of each distribution. So neither its variance, (b - 1)^2 var, nor its covariance with m, (b - 1) var, has the
    entropy H, and their ratio is b - 1. Rounding adds to the variance alone, by no more than is explained.
    """
    difference, middle = difference - difference.mean(), middle - middle.mean()
    tokens = differences.tokens
    of_each = tokens.expanded(np.arange(len(tokens.lengths)))[differences.sampled]
    squares, products = np.bincount(of_each, difference * difference), np.bincount(of_each, difference * middle)
    square, product = float(squares.sum()), float(products.sum())
    if not product:
        return None, []
    slope = square / product
    # The error of a ratio of sums over sequences.
    error = math.sqrt(float(np.sum((squares - slope * products) ** 2))) / abs(product)
    scale = differences.scale[differences.sampled].astype(np.float64)
    rounding = min(differences.explained**2 * float(scale @ scale) / square, unexplained)
    ends = [part * slope + way * 2 * error for part in (1.0, 1 - rounding) for way in (-1, 1)]

    def distance_of_slope(of: float) -> float:
        # The slope is that against the middle of both sides.
        of = min(max(of, -1.9), 1.9)
        return (1 - of / 2) / (1 + of / 2)

    return distance_of_slope(slope), [distance_of_slope(max(ends)), distance_of_slope(min(ends))]


def penalty(differences: Differences) -> Finding | None:
    """Tokens that a sequence had before go one way, and new ones the other: penalties of sampling.

    A lower logit of all tokens that were there raises the others. How often each was there, and its log-probability,
    tell a frequency penalty and a repetition penalty from a presence penalty.
    """
    repeats = differences.tokens.repeats
    if repeats is None:
        return None
    count = len(repeats)
    part = slice(None) if count <= SAMPLE else slice(0, SAMPLE)
    times, relative = repeats[part], (differences.signed[part] / differences.scale[part]).astype(np.float64)
    seen = times > 0
    old, new = np.flatnonzero(seen), np.flatnonzero(~seen)
    if not len(old) or not len(new):
        return None
    of_old, of_new, whole = relative[old], relative[new], float(relative @ relative)
    sign = -1.0 if of_old.sum() < 0 else 1.0
    agrees = of_old[of_old * sign > 0]
    # Tokens of a prompt that is not given count as new ones, so that these agree in their majority only.
    others = int(np.count_nonzero(of_new * sign < 0))
    if not whole:
        return None
    by_chance = max(1 - others / len(new), 1 / len(new))
    if 2 * others - len(new) < _CERTAIN * math.sqrt(len(new)):
        return None
    if (2 * len(agrees) - len(old)) * -math.log(by_chance) < _CHANCE:
        return None
    of_mean, middle = _along(np.ones(len(old)), of_old), float(of_new.mean())
    of_count = _along(times[old].astype(np.float64), of_old)
    share = (max(of_mean, of_count) + len(new) * middle * middle) / whole
    gained = of_new[of_new * sign < 0]
    if share < _LEAST_SHARE and float(agrees @ agrees + gained @ gained) < _AGREES * whole:
        return None
    lower, higher = ("lower", "higher") if sign < 0 else ("higher", "lower")
    name = "frequency" if of_count > of_mean else "repetition or presence"
    text = (
        f"the rollout's log-probabilities of tokens that the sequence had are {lower} than the training's, those "
        f"of new tokens {higher}, as with a {name} penalty"
    )
    return Finding(PENALTY, text, {"repeated": len(old), "new": len(new), "explained": share}, share)


def _along(values: Array, others: Array) -> float:
    """The sum of squares of `others` that is proportional to `values`."""
    return float(values @ others) ** 2 / float(values @ values)


def renormalised(differences: Differences) -> Finding | None:
    """Differences of one sign, and bounded: the probability that top-p or top-k leaves out is shared by the rest."""
    signed = differences.signed
    count = len(signed)
    if count < _FEWEST:
        return None
    least, most = float(signed.min()), float(signed.max())
    sign = 1 if most >= -least else -1
    if max(most, -least) > _LARGEST:
        return None
    share = _share_of_shift(differences, sign)
    far = differences.relative > 2 * differences.explained
    number = int(np.count_nonzero(far))
    against = int(np.count_nonzero(far & (signed * sign < 0))) if number else 0
    is_one_sided = number >= 20 and against <= 0.02 * number and number > count // 1000
    if share < _LEAST_SHARE and not is_one_sided:
        return None
    lower = "training" if sign > 0 else "rollout"
    is_certain = np.count_nonzero(differences.freedom > _UNCERTAIN) < _FEWEST
    other = "; a temperature cannot be told from tokens that are nearly certain" if is_certain else ""
    text = (
        f"the log-probabilities of the {lower} are lower by up to {max(most, -least):.2g} nats and never higher, as "
        f"with top-p or top-k on the other side{other}"
    )
    return Finding(TEMPERATURE, text, {"lower": lower, "at_most": max(most, -least)}, max(share, 0.5))


def raised_ids(differences: Differences) -> Finding | None:
    """Tokens of a few ids that differ in one direction and all others in the other one.

    A logit that one side raises takes probability from all other tokens.
    """
    ids = differences.tokens.ids
    if ids is None or not len(ids) or int(ids.min()) < 0 or int(ids.max()) > LARGEST_ID:
        return None
    far = differences.relative > differences.explained
    number = int(np.count_nonzero(far))
    if number < _FEWEST:
        return None
    for sign, verb in ((1, "higher"), (-1, "lower")):
        is_raised = far & (differences.signed * sign > 0)
        raised = int(np.count_nonzero(is_raised))
        if not _FEWEST_RAISED <= raised < number / 2:
            continue
        counts = np.bincount(ids[is_raised])
        of_id = np.bincount(ids[far], minlength=len(counts))[: len(counts)]
        found = np.flatnonzero((counts >= _FEWEST_OF_ID) & (counts >= _ONE_SIDED * of_id))
        # The others agree in their direction.
        if not 0 < len(found) <= MOST_IDS or counts[found].sum() < _ONE_SIDED * raised:
            continue
        shown = ", ".join(map(str, found.tolist()))
        text = (
            f"the rollout's log-probabilities of the tokens of id {shown} are {verb} than the training's, and those of "
            "all other tokens are not"
        )
        picked = np.zeros(len(counts), np.bool_)
        picked[found] = True
        return Finding(SPECIAL, text, {"ids": found.tolist()}, math.inf, picked=(
            picked[np.minimum(ids, len(counts) - 1)] & (ids < len(counts))))  # fmt: skip
    return None


def _share_of_shift(differences: Differences, sign: int) -> float:
    """The share that the mean has in the mean square of differences, if chance and the choice of tokens do not give it.

    Errors of logits of a mean square of v lower the other side's log-probabilities by v / 2 in the mean.
    """
    tokens, signed = differences.tokens, differences.signed
    count, groups = len(signed), len(tokens.lengths)
    mean = float(np.mean(signed, dtype=np.float64))
    square = float(np.dot(signed, signed)) / count
    if not square:
        return 0.0
    if groups > 1:
        left = tokens.by_sequence(signed) - mean * tokens.lengths
        error = math.sqrt(float((left * left).sum())) / count
    else:
        error = math.sqrt(max(square - mean * mean, 0.0) / count)
    beyond = mean * sign - square / 2
    if beyond < _CERTAIN * error:
        return 0.0
    return mean * mean / square


def _correlation(one: Array, other: Array) -> float:
    one, other = one - one.mean(), other - other.mean()
    scale = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / scale if scale else 0.0
