"""Findings of one kind of mismatch, and two tests: some tokens far off, and tokens shifted or unrelated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout.kinds.differences import Differences

NONE, ROUNDING = "none", "rounding"
TEMPERATURE, SHIFTED, SEQUENCES, POSITION = "temperature", "shifted", "sequences", "position"
SPECIAL, STALE, ROUTING, PRECISION, NONFINITE = "special_tokens", "stale", "routing", "precision", "nonfinite"
PENALTY, UNRELATED, WEIGHTS = "penalty", "unrelated", "weights"
KINDS = (
    NONE, ROUNDING, TEMPERATURE, SHIFTED, SEQUENCES, POSITION, SPECIAL, STALE, ROUTING, PRECISION, NONFINITE,
    PENALTY, UNRELATED, WEIGHTS,
)  # fmt: skip
FINE = frozenset((NONE, ROUNDING))
"""Kinds that are no finding."""

CAUSES: Mapping[str, str] = {
    TEMPERATURE: "temperature, top-p or top-k that one side applies before it takes log-probabilities",
    PENALTY: "repetition, presence or frequency penalty of the sampler, which the training does not apply",
    SHIFTED: "logits of a token taken for those of the next one; a token at the begin that only one side has",
    SEQUENCES: "chat template, truncation, padding on the left, image tokens: other prompts on both sides",
    POSITION: "cache, position ids, sliding window, chunked prefill; rotary embedding and context length if it grows",
    SPECIAL: "penalties and minimum lengths of sampling, tokens added by the template, the end token",
    UNRELATED: "labels that are one off, ids of another tokenizer, rows in another order, logits of another batch",
    STALE: "weights that reach the engine late, or not all of them",
    ROUTING: "experts that a router chooses otherwise, by rounding near a tie",
    PRECISION: "a quantised or short dtype, another kernel, or weights that differ",
    WEIGHTS: "a parameter that the bridge or the load lost, permuted, transposed or rounded",
    NONFINITE: "a mask or a probability of 0 on one side, an overflow",
}  # fmt: skip
"""Usual cause of each kind."""

MOST_IDS = 8
"""With more, it is not special tokens that differ."""
LARGEST_ID = 1 << 24
"""Larger numbers are no ids of tokens."""


@dataclass(frozen=True)
class Finding:
    """A kind of mismatch with what shows it."""

    kind: str
    sentence: str
    """Without the kind and without a full stop."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    strength: float = 0.0
    """Share of the variance that the test explains; the largest is named first."""
    factor: float = 0.0
    """Factor between the ends of a difference that grows; 0 if it does not."""
    picked: NDArray[Any] | None = None
    """True for the tokens that are concerned; ``None`` for all."""


# --- populations


_SMALLEST, _LARGEST = 2e-4, 0.45
"""The share of tokens that may be far off."""
_ENERGY = 0.8
"""The share that they must have in the sum of squares."""
_FEWEST_FAR = 4
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
    return len(far) >= _FEWEST_FAR or bool(len(far) and far.max() > _BEYOND * differences.explained)


# --- shifted


_RATIO = 1 / 8
"""The sum of squares of differences, shifted, relative to that as it is: independent values have 1, and of a dozen
tokens one eighth once in 10^4 sequences."""
_SHORTEST = 4
"""Tokens of a response that a shift is looked for in; a guess."""
_CERTAIN = 6.0
"""Standard errors of the number of tokens that agree better when shifted, of which chance has half: once in 10^9."""
_LEAST_CORRELATION = 0.7
"""Rank correlation of both sides among tokens of one id, below which they do not belong together. One model in
two precisions, of which one may be float8, has more than 0.9."""
_FEWEST_TOKENS = 50
"""Tokens that are needed to tell a shift from chance; a guess."""


def unrelated(differences: Differences) -> Finding | None:
    """Both sides do not go together: what one says of a token tells nothing of what the other says of it.

    Frequent tokens are likely anywhere, so tokens are compared with others of their id where ids are given.
    """
    tokens, picked = differences.tokens, differences.sampled
    sides = [side[picked].astype(np.float64) for side in (tokens.rollout, tokens.training)]
    count = len(sides[0])
    if count < _FEWEST_TOKENS:
        return None
    kept: Any = slice(None)
    if tokens.ids is not None and int(tokens.ids.min()) >= 0 and int(tokens.ids.max()) <= LARGEST_ID:
        ids = tokens.ids[picked]
        counts = np.bincount(ids)
        several = np.flatnonzero(counts[ids] > 1)
        if len(several) >= max(_FEWEST_TOKENS, count // 4):
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
