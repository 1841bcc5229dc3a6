"""One kind of mismatch that a test found, and the names of the kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

NONE, ROUNDING = "none", "rounding"
TEMPERATURE, SHIFTED, SEQUENCES, POSITION = "temperature", "shifted", "sequences", "position"
SPECIAL, STALE, ROUTING, PRECISION, NONFINITE = "special_tokens", "stale", "routing", "precision", "nonfinite"
PENALTY, UNRELATED = "penalty", "unrelated"
KINDS = (
    NONE, ROUNDING, TEMPERATURE, SHIFTED, SEQUENCES, POSITION, SPECIAL, STALE, ROUTING, PRECISION, NONFINITE,
    PENALTY, UNRELATED,
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
