"""One kind of mismatch that a test found, and the names of the kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

NONE, ROUNDING = "none", "rounding"
TEMPERATURE, SHIFTED, SEQUENCES, POSITION = "temperature", "shifted", "sequences", "position"
SPECIAL, STALE, ROUTING, PRECISION, NONFINITE = "special_tokens", "stale", "routing", "precision", "nonfinite"
KINDS = (
    NONE, ROUNDING, TEMPERATURE, SHIFTED, SEQUENCES, POSITION, SPECIAL, STALE, ROUTING, PRECISION, NONFINITE,
)  # fmt: skip
FINE = frozenset((NONE, ROUNDING))
"""Kinds that are no finding."""


@dataclass(frozen=True)
class Finding:
    """A kind of mismatch with what shows it."""

    kind: str
    sentence: str
    """Without the kind and without a full stop."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    strength: float = 0.0
    """How much of the variance the test explains; the largest is named first."""
    picked: NDArray[Any] | None = None
    """True for the tokens that are concerned; ``None`` for all."""
