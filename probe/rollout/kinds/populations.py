"""Two populations of tokens: most with the error of rounding, some far off, anywhere."""

from __future__ import annotations

import numpy as np

from probe.rollout.kinds.differences import Differences
from probe.rollout.kinds.finding import ROUTING, Finding

_FAR = 12.0
"""Standard deviations of most tokens: no normal error is so large, nor one of Student's with five degrees of freedom
in one of 10^5 tokens."""
_SMALLEST, _LARGEST = 2e-4, 0.45
"""The share of tokens that may be far off."""
_ENERGY = 0.8
"""The share that they must have in the sum of squares."""
_FEWEST = 4
_SPREAD = 0.6
"""The share of the sequences that should have one by chance and do: another expert moves the tokens behind it, too, so
that they come in groups."""


def routing(differences: Differences) -> Finding | None:
    """Some tokens that differ by more than most, without a pattern: those that a router sends to another expert."""
    far = differences.relative > max(_FAR * differences.typical, differences.explained)
    number = int(np.count_nonzero(far))
    share = number / len(far)
    if number < _FEWEST or not _SMALLEST < share < _LARGEST:
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
    return Finding(ROUTING, text, {"share": share}, of_far, far)
