"""Two populations of tokens: most with the error of rounding, some far off, anywhere."""

from __future__ import annotations

import numpy as np

from probe.rollout.kinds.differences import Differences
from probe.rollout.kinds.finding import ROUTING, Finding

_SMALLEST, _LARGEST = 2e-4, 0.45
"""The share of tokens that may be far off."""
_ENERGY = 0.8
"""The share that they must have in the sum of squares."""
_FEWEST = 4
"""Tokens that are far off, of which rounding may have a few where a token is nearly certain."""
_BEYOND = 100.0
"""The size relative to what rounding explains, of which one token is enough: three standard deviations are lost where a
token is nearly certain, and the rest is a guess."""
_SPREAD = 0.6
"""The share of the sequences that should have one by chance and do: another expert moves the tokens behind it, too, so
that they come in groups."""


def routing(differences: Differences) -> Finding | None:
    """Some tokens that differ by more than most, without a pattern: those that a router sends to another expert."""
    far = differences.far
    share = np.count_nonzero(far) / len(far)
    if not is_beyond_rounding(differences) or not _SMALLEST < share < _LARGEST:
        return None
    energy = differences.energy
    of_far = float(energy[far].sum(dtype=np.float64)) / float(energy.sum(dtype=np.float64))
    if of_far < _ENERGY:
        return None
    tokens = differences.tokens
    # Where they lie anywhere, this many sequences have one.
    expected = float(np.sum(1 - (1 - share) ** tokens.lengths))
    if np.count_nonzero(tokens.by_sequence(far)) < _SPREAD * expected:
        return None
    text = (
        f"{100 * share:.2g} % of the tokens are far off and the others are not, in all sequences and at all positions, "
        "as when a router takes other experts"
    )
    return Finding(ROUTING, text, {"share": share}, of_far)


def is_beyond_rounding(differences: Differences) -> bool:
    """True if tokens are far off in a number or by a size that no rounding has."""
    far = differences.relative[differences.far]
    return len(far) >= _FEWEST or bool(len(far) and far.max() > _BEYOND * differences.explained)
