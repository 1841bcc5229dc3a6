"""Differences of log-probabilities relative to what an error of the logits does to each token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.numerics.formats import format_of
from probe.rollout.tokens import Tokens

DTYPES = ("float32", "float16", "bfloat16")
"""From the most exact one to the least; what is not named may be any of them."""
LAYERS = 64
"""Taken where the number of layers is not given: that of models with some 30 billion parameters."""
VOCABULARY = 1 << 17
"""Taken where the vocabulary is not known; the level grows with the root of its logarithm."""
_OF_SUMS = 6.0
"""Further rounding of sums in float32, of which each product is exact in half precision; a guess."""
_MARGIN = 2.0
"""Ratio of rounding to the derivation above, which has independent errors: a guess, which
`benchmarks/rollout_kinds.py` and models of other makers support."""


@dataclass(frozen=True)
class Level:
    """Differences that the rounding of one dtype explains."""

    dtype: str
    size: float
    """The root mean square of differences relative to 1 - p, in nats."""
    floor: float
    """The root mean square of a token that is certain: rounding of log_softmax in float32, and of stored results."""
    quantum: float
    """The distance of two results for a token that is nearly certain: log_softmax sums to a little more than 1 then."""


def level_of(dtype: str, vocabulary: int, entropy: float, layers: int) -> Level:
    """The level of a dtype.

    Args:
        dtype: Of the logits and of what they are computed from.
        vocabulary: The number of tokens to choose from.
        entropy: The mean entropy of the distributions, in nats.
        layers: The number of layers of the model.
    """
    number_format = format_of(dtype)
    unit = number_format.unit if number_format is not None and number_format.rounds else 0.0
    choices = math.log(max(vocabulary, 2))
    # Flat distributions are left with the differences that a tenth of a nat needs.
    spread = math.sqrt(2 * max(choices - entropy, 0.1))
    # Where a few tokens have all of the probability, their gaps are spread / sqrt(2 log(vocabulary)) / entropy, and
    # that the spread is more than the formula gives shows in nothing else; twice as much is allowed, which is a guess.
    spread *= min(max(math.pi**2 / 6 / max(entropy, 1e-3), 1.0), 2.0)
    roundings = math.sqrt(1.4 * layers + 0.7 * choices)
    sums = _OF_SUMS if dtype in ("float32", "float64") else 1.0
    largest = spread * math.sqrt(2 * choices) + choices
    single = 2.0**-24 if dtype != "float64" else 2.0**-53
    return Level(dtype, _MARGIN * unit * spread * roundings * sums, single * largest, 2 * single)


# --- differences


Array = NDArray[Any]
SAMPLE = 20_000
"""Tokens from which a median is taken: of this many it is right to two per cent."""
_LEAST = 2.0**-26
"""Added to differences before their logarithm is taken, which of 0 has none: less than a rounding of float32."""
_FAR = 12.0
"""Standard deviations of most tokens: no normal error is so large, nor one of Student's with five degrees of freedom
in one of 10^5 tokens."""
_SHARE_OF_OTHERS = 0.2
"""Share of all tokens; a guess."""
NORMAL = 0.6745
"""The median of the absolute value of a standard normal number."""
_NORMAL_90 = 1.6449
"""The quantile of 90 per cent of the absolute value of a standard normal number."""


def median(values: Array) -> float:
    """The upper one of the two middle values, in half the time of numpy's median."""
    middle = len(values) // 2
    return float(np.partition(values, middle)[middle])


def middle_of(values: Array) -> float:
    """The median of a few numbers as numpy defines it, in a quarter of the time that numpy takes to begin."""
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    ordered = np.partition(values, (half - 1, half))
    return float(ordered[half - 1] + ordered[half]) / 2


@dataclass(frozen=True)
class Differences:
    """Values that the tests look at; every number is finite."""

    tokens: Tokens
    dtype: str = ""
    """The dtype in which both sides compute, where it is known."""
    vocabulary: int = 0
    layers: int = 0

    @cached_property
    def signed(self) -> Array:
        """Rollout less training, in nats."""
        return self.tokens.rollout - self.tokens.training

    @cached_property
    def freedom(self) -> Array:
        """1 - p of each token, by the side that is less sure of it."""
        # Less exact than expm1 where p is nearly 1, which `least_freedom` covers, and several times as fast.
        return np.asarray(1 - np.exp(np.minimum(self.tokens.rollout, self.tokens.training)))

    @cached_property
    def sampled(self) -> Any:
        """The indices of some tokens, the same ones for the same number of tokens; all where there are few."""
        count = len(self.tokens)
        if count <= SAMPLE:
            return slice(None)
        return np.random.default_rng(count).integers(0, count, SAMPLE)

    @cached_property
    def least_freedom(self) -> float:
        """The freedom below which the size of differences follows it no more, because results are rounded."""
        freedom, size = self.freedom[self.sampled], np.abs(self.signed[self.sampled])
        # Indices take the values in half the time of a mask.
        exact = self.levels[0]
        # One quantum in the result is never more than rounding explains.
        least = min(exact.quantum / exact.size, 1.0) if exact.size else 1e-6
        certain, free = np.flatnonzero(freedom < 0.02), np.flatnonzero(freedom > 0.2)
        if len(certain) < 50 or len(free) < 20:
            return max(1e-3, least)
        per_freedom = median(size.take(free) / freedom.take(free)) + _LEAST
        left = max(median(size.take(certain)) - per_freedom * median(freedom.take(certain)), 0.0)
        return min(max(left / per_freedom, least), 1.0)

    @cached_property
    def scale(self) -> Array:
        """By how much an error of the logits of one nat would move each token."""
        freedom = self.freedom
        return np.asarray(np.sqrt(freedom * freedom + freedom.dtype.type(self.least_freedom**2)))

    @cached_property
    def relative(self) -> Array:
        """Absolute differences in errors of logits."""
        return np.abs(self.signed) / self.scale

    @cached_property
    def logs(self) -> Array:
        """Their natural logarithms: what tests of groups compare, because no single token decides their mean."""
        return np.asarray(np.log((np.abs(self.signed) + self.signed.dtype.type(_LEAST)) / self.scale))

    @cached_property
    def energy(self) -> Array:
        return self.relative * self.relative

    @cached_property
    def typical(self) -> float:
        """The median of relative differences as the standard deviation of normal errors."""
        return median(self.relative[self.sampled]) / NORMAL

    @cached_property
    def size(self) -> float:
        """The root mean square of relative differences."""
        relative = self.relative
        # Products are summed in blocks, which loses no digit that counts here.
        return math.sqrt(float(np.dot(relative, relative)) / len(relative))

    @cached_property
    def entropy(self) -> float:
        """The mean entropy of the distributions; without it that of the sampled tokens, whose mean it is."""
        tokens = self.tokens
        if tokens.entropy is not None:
            return float(np.mean(tokens.entropy, dtype=np.float64))
        return -float(np.mean(tokens.training, dtype=np.float64))

    @cached_property
    def choices(self) -> int:
        """The size of the vocabulary: that given, or the largest id, or that of large models."""
        if self.vocabulary:
            return self.vocabulary
        if self.tokens.ids is not None and len(self.tokens.ids):
            return int(self.tokens.ids.max()) + 1
        return VOCABULARY

    @cached_property
    def levels(self) -> Sequence[Level]:
        """The levels of the dtypes that the run may have, from the most exact one to the least."""
        names = (self.dtype,) if self.dtype else DTYPES
        return [level_of(name, self.choices, self.entropy, self.layers or LAYERS) for name in names]

    @cached_property
    def level(self) -> Level:
        """The level of the first dtype that explains most of the tokens; the largest one if none does.

        In a short dtype half of the tokens may be equal to the digits of float32, where distributions are sharp.
        """
        if len(self.levels) == 1:
            return self.levels[0]
        relative = self.relative[self.sampled]
        index = len(relative) * 9 // 10
        return self.level_of_typical(max(self.typical, float(np.partition(relative, index)[index]) / _NORMAL_90))

    def described(self, level: Level) -> str:
        """The dtype of a level; each that it may be where the dtype is not known.

        The differences of a run in bfloat16 may be no larger than float16 would explain, which does not make it one.
        """
        if self.dtype or level.dtype == DTYPES[0]:
            return level.dtype
        return " or ".join(DTYPES[DTYPES.index(level.dtype) :])

    def level_of_typical(self, typical: float) -> Level:
        return next((level for level in self.levels if typical <= self.size_at_level(level)), self.levels[-1])

    def explained_by(self, others: Array) -> float:
        """Part of a group's differences that rounding explains, given the tokens outside of it.

        Where the dtype is not known, the others show it: not by being equal, which they may be in any dtype, and not
        where they are few, as the first tokens, which one kernel may have computed on both sides.
        """
        relative = self.relative[others]
        if len(relative) < _SHARE_OF_OTHERS * len(others):
            return self.explained
        typical = median(relative) / NORMAL
        return self.size_at_level(self.level_of_typical(typical)) if typical else self.explained

    def size_at_level(self, level: Level) -> float:
        """The size of relative differences that a level explains, with the rounding of results."""
        return math.hypot(level.size, level.floor / max(self.least_freedom, 0.1))

    @cached_property
    def explained(self) -> float:
        """The size of relative differences that rounding explains."""
        return self.size_at_level(self.level)

    @cached_property
    def far(self) -> Array:
        """True for each token that is far off most of them, and more than rounding explains."""
        return np.asarray(self.relative > max(_FAR * self.typical, self.explained))

    @cached_property
    def body(self) -> float:
        """The root mean square of the relative differences of those that are not far off."""
        return self.size_of(~self.far)

    @cached_property
    def level_of_body(self) -> Level:
        """The level of the first dtype that explains the body; the largest one if none does.

        Most tokens may be explained by a more exact one.
        """
        if self.size <= self.explained:
            return self.level
        return self.level_of_typical(self.body)

    def size_of(self, picked: Array) -> float:
        """The root mean square of the relative differences of some tokens; 0 of none."""
        count = np.count_nonzero(picked)
        return math.sqrt(float(self.energy[picked].sum(dtype=np.float64)) / count) if count else 0.0
