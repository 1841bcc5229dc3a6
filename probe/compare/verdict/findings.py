"""Findings of the walk over two runs: values that nothing explains, and values that are apart and explained."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Optional

from probe.common.align.row import Row
from probe.compare.verdict.facts import Call


class Kind(Enum):
    """The sign of a divergence."""

    OUTPUT = "output"
    """A result is further apart than its inputs explain."""
    LIKE = "like"
    """A result is further apart than that of similar calls."""
    INPUT = "input"
    """An input is further apart than anything before it that is recorded."""
    DATA = "data"
    """Data differ."""
    PARAMETER = "parameter"
    """A parameter differs."""
    NONFINITE = "nonfinite"
    """One side has a NaN or an infinity."""
    WHOLE = "whole"
    """Whole numbers differ."""
    RANDOM = "random"
    """Random numbers differ."""
    PARTS = "parts"
    """One side has a part of a batch, and the other side all of it."""
    GRADIENT = "gradient"
    """One side has no gradient."""


class Finding(NamedTuple):
    """A value that nothing explains."""

    call: Call
    row: Row
    kind: Kind
    distance: float
    given: float
    """The largest distance of what it is made from."""
    allowed: float
    """The distance that is explained."""
    others: int = 0
    """The calls like it that tell what is usual, where they do."""


class Excused(NamedTuple):
    """A value that is apart and explained."""

    call: Call
    row: Row
    distance: float
    given: float
    allowed: float
    """The distance that is explained, which is the smallest that would have been seen."""


@dataclass
class Walked:
    """All that was found on the way."""

    findings: list[Finding] = field(default_factory=list)
    """In the order of the calls; the first is where the runs diverge."""
    excused: list[Excused] = field(default_factory=list)
    undecided: list[Finding] = field(default_factory=list)
    """Random numbers that differ, behind which nobody can tell."""
    hidden: list[Finding] = field(default_factory=list)
    """Inputs that nothing explains and whose effect rounding may hide."""
    in_parts: Optional[Finding] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The first data of which one run takes a part; of calls, no value but a parameter is judged then."""
