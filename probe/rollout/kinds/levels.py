"""Distance by which rounding moves log-probabilities: a level derived from dtype, vocabulary, entropy and layers.

The log-probability of a token is its logit less the logarithm of a sum over all of them, so an error of the logits
moves it by (1 - p) times their error or a little more: a token that is nearly certain hardly moves. What is judged is
therefore the difference relative to 1 - p, and the level is the size of the errors of logits:

- Each layer adds its results to the residual stream by a few roundings. One rounding to nearest has a relative error of
  0.42 unit roundoffs (root mean square over numbers whose logarithms are uniform), so both programs together collect
  0.42 u sqrt(2 * 4 * layers) = u sqrt(1.4 layers).
- A random relative error e of the last hidden state moves logits apart by e times their standard deviation s. For
  logits that are distributed normally the entropy is log(vocabulary) - s^2 / 2, which gives s.
- The logits themselves are rounded, the largest of which is s sqrt(2 log(vocabulary)): 0.42^2 * 2 * 2 log(vocabulary).
- In float32 the sums of products round, too, which kernels of shorter dtypes do in float32: sums of a few thousand
  products in blocks add some five unit roundoffs to each of these, and log_softmax rounds what it subtracts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from probe.common.numerics.formats import format_of

DTYPES = ("float32", "float16", "bfloat16")
"""From the most exact one to the least; what is not named may be any of them."""
LAYERS = 64
"""Taken where the number of layers is not given: that of models with some 30 billion parameters."""
VOCABULARY = 1 << 17
"""Taken where the vocabulary is not known; the level grows with the root of its logarithm."""
_OF_SUMS = 6.0
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
