"""Log-probabilities of other tokens or logits: one side a token early or late, or none that fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from probe.rollout.kinds.differences import Differences
from probe.rollout.kinds.finding import LARGEST_ID, SHIFTED, UNRELATED, Finding

_RATIO = 1 / 8
"""The sum of squares of differences, shifted, relative to that as it is: independent values have 1, and of a dozen
tokens one eighth once in 10^4 sequences."""
_SHORTEST = 4
_CERTAIN = 6.0
"""Standard errors of the number of tokens that agree better when shifted, of which chance has half: once in 10^9."""
_LEAST_CORRELATION = 0.7
"""Rank correlation of both sides among tokens of one id, below which they do not belong together. One model in
two precisions, of which one may be float8, has more than 0.9."""
_FEWEST = 50


def unrelated(differences: Differences) -> Finding | None:
    """Both sides do not go together: what one says of a token tells nothing of what the other says of it.

    Frequent tokens are likely anywhere, so tokens are compared with others of their id where ids are given.
    """
    tokens, picked = differences.tokens, differences.sampled
    sides = [side[picked].astype(np.float64) for side in (tokens.rollout, tokens.training)]
    count = len(sides[0])
    if count < _FEWEST:
        return None
    kept: Any = slice(None)
    if tokens.ids is not None and int(tokens.ids.min()) >= 0 and int(tokens.ids.max()) <= LARGEST_ID:
        ids = tokens.ids[picked]
        counts = np.bincount(ids)
        several = np.flatnonzero(counts[ids] > 1)
        if len(several) >= max(_FEWEST, count // 4):
            kept = several
            sides = [side - (np.bincount(ids, side) / np.maximum(counts, 1))[ids] for side in sides]
    ranks = [np.argsort(np.argsort(side[kept])).astype(np.float64) for side in sides]
    found = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    if found + 3 / math.sqrt(len(ranks[0])) > _LEAST_CORRELATION:
        return None
    text = (
        f"not the same tokens or logits: the rank correlation of both sides is {found:.2f}, so that one does not "
        "predict the other"
    )
    return Finding(UNRELATED, text, {"correlation": found}, math.inf)


def shifted(differences: Differences) -> Finding | None:
    """Sequences whose training agrees with the token before or after."""
    tokens = differences.tokens
    squares = tokens.by_sequence(differences.signed * differences.signed)
    best: tuple[float, int, Any, Any] | None = None
    for by in (1, -1):
        moved = np.zeros_like(differences.signed)
        if by > 0:
            # The training has at each token what the rollout has at the one before.
            moved[1:] = tokens.rollout[:-1] - tokens.training[1:]
            moved[tokens.starts] = 0
        else:
            moved[:-1] = tokens.rollout[1:] - tokens.training[:-1]
            moved[tokens.starts + tokens.lengths - 1] = 0
        left = tokens.by_sequence(moved * moved)
        fits = (left < squares * _RATIO) & (tokens.lengths >= _SHORTEST)
        gained = float(squares[fits].sum())
        if best is None or gained > best[0]:
            best = gained, by, fits, moved
    assert best is not None
    gained, by, fits, moved = best
    if gained < float(squares.sum()) / 2:
        return None
    picked = tokens.expanded(fits)
    # A few large differences decide sums of squares; each token has one vote here.
    count = int(np.count_nonzero(picked))
    nearer = int(np.count_nonzero(np.abs(moved[picked]) < np.abs(differences.signed[picked])))
    if nearer - count / 2 < _CERTAIN * math.sqrt(count) / 2 or differences.size_of(picked) <= differences.explained:
        return None
    number, where = int(fits.sum()), "later" if by > 0 else "earlier"
    some = "" if number == len(fits) else f" in {number} of {len(fits)} sequences"
    text = f"the training's log-probabilities are those of the rollout one token {where}{some}"
    return Finding(SHIFTED, text, {"by": by, "sequences": number}, math.inf, picked=picked)
