"""The judgement of every pair of calls by the search, for readers that show them all."""

from __future__ import annotations

from typing import NamedTuple, Optional

from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.result import Unexplained

SAME, EXPLAINED, STRUCTURE, UNEXPLAINED = range(4)
"""The result of a judgement: nothing differs; what differs is explained; an argument, a type or a shape differs, or a
value by more than is explained, without effect; a value differs by more than is explained, with effect."""


class JudgedCall(NamedTuple):
    """One pair of calls, and what was found of it."""

    call: AlignedCall
    outcome: int
    """`SAME`, `EXPLAINED`, `STRUCTURE` or `UNEXPLAINED`."""
    inputs: float
    """The largest relative difference of inputs and parameters."""
    outputs: float
    """The largest relative difference of outputs."""
    reason: str
    """The difference, its size, and the explained part; empty if there is none."""
    suspect: Optional[Unexplained] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The suspect if nothing explains the difference: this call, or one around or before it."""
    parameter: str = ""
    """The parameter that differs, as its module calls it."""
