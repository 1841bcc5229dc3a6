"""Log-probabilities of processed logits: a temperature, or top-p and top-k."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout.kinds.differences import Differences
from probe.rollout.kinds.finding import LARGEST_ID, MOST_IDS, SPECIAL, TEMPERATURE, Finding

Array = NDArray[Any]
_FEWEST = 50
_CERTAIN = 6.0
"""Standard errors: what chance reaches once in 10^9 sets."""
_LEAST_SHARE = 0.3
"""Share of the variance of differences that a line must explain. Errors of logits of one nat explain a tenth by the
choice of tokens alone, because the variance of the other side's log-probabilities grows by theirs."""
_LEAST_CORRELATION = 0.9
"""Correlation of both sides. A temperature keeps the order of tokens, which errors of its size do not."""
_ONE_SIDED = 0.95
"""Share of tokens with one sign, where rounding adds the others. A guess."""
_FEWEST_RAISED = 12
"""Tokens that have to be raised, of one id and others. A guess."""
_FEWEST_OF_ID = 3
"""Tokens of the raised id among them. A guess."""
_LARGEST = 3.0
"""A difference in nats. Larger ones are not what top-p leaves out, of which a twentieth of the probability stays."""


def temperature(differences: Differences) -> Finding | None:
    """A slope of the differences against log-probabilities: that of logits divided by a temperature.

    The derivative of a log-probability by the inverse temperature is the log-probability plus the entropy.
    """
    tokens, picked = differences.tokens, differences.sampled
    rollout, training = (side[picked].astype(np.float64) for side in (tokens.rollout, tokens.training))
    if len(rollout) < _FEWEST:
        return None
    difference, middle = rollout - training, (rollout + training) / 2
    best, along = 0.0, middle
    for against in [middle] if tokens.entropy is None else [middle, middle + tokens.entropy[picked]]:
        found = _correlation(difference, against)
        if abs(found) > abs(best):
            best, along = found, against
    error = 1 / math.sqrt(len(rollout))
    if abs(best) < max(math.sqrt(_LEAST_SHARE), _CERTAIN * error):
        return None
    if _correlation(rollout, training) < _LEAST_CORRELATION:
        return None
    slope = best * float(np.std(difference) / np.std(along))
    # The slope against the middle of both sides.
    inverse = (1 + slope / 2) / max(1 - slope / 2, 1e-6)
    text = (
        f"the difference follows the log-probability (correlation {best:.2f}), as if the rollout had divided its "
        f"logits by a temperature of {1 / inverse if inverse > 0 else math.inf:.2f}"
    )
    return Finding(TEMPERATURE, text, {"temperature": 1 / inverse, "correlation": best}, best * best)


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
    text = (
        f"the log-probabilities of the {lower} are lower by up to {max(most, -least):.2g} nats and never higher, as "
        f"with top-p or top-k on the other side"
    )
    return Finding(TEMPERATURE, text, {"lower": lower, "at_most": max(most, -least)}, max(share, 0.5), None)


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
        return Finding(SPECIAL, text, {"ids": found.tolist()}, math.inf, picked[np.minimum(ids, len(counts) - 1)] & (
            ids < len(counts)))  # fmt: skip
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
