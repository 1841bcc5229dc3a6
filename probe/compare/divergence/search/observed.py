"""Observations on one call, before their meaning is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from probe.common.align.row import Row
from probe.common.dump.reading.records import Item
from probe.compare.divergence.peers.leaving import Leaving
from probe.compare.result import Difference, Unexplained


class Elsewhere(NamedTuple):
    """An input that differs, where the other program holds its values in another place."""

    row: Row
    difference: float
    """The relative difference."""


class JudgedOutput(NamedTuple):
    """A tensor that a call returned on both sides."""

    row: Row
    target: Item
    golden: Item
    difference: float
    """The relative difference."""
    of_inputs: float
    """The relative difference of the inputs."""
    allowed: float
    """The relative difference that is explained."""
    factor: float
    """By how much the call may have increased the relative difference of its inputs."""
    leaving: Optional[Leaving] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The finding of its peers, where they alone show that it is not explained."""
    of_kernel: float = 0.0
    """The relative error that the kernel of a gradient makes by rounding partial sums; 0 if it rounds the sum alone."""


@dataclass
class Observed:
    """The observations on one call."""

    suspect: Unexplained | None = None
    """The first item that nothing explains."""
    certain: bool = True
    """True if the two calls do the same with the same, so that an output that differs is a divergence."""
    of_own_values: bool = False
    """True if what differs is no argument that may be made otherwise: kept statistics, or the batch."""
    of_parameter: bool = False
    """True if it is a parameter that differs."""
    parameter: str = ""
    """Its name in its module."""
    modules_named: list[str | None] = field(default_factory=list)
    """Modules around the call that have such a parameter, and have not ended."""
    gradient: Difference | None = None
    """A tensor that takes a gradient on one side only, the first one of the walk."""
    differences: list[Difference] = field(default_factory=list)
    """The differences other than numbers."""
    outputs: list[JudgedOutput] = field(default_factory=list)
    elsewhere: list[Elsewhere] = field(default_factory=list)
    """The inputs that differ and explain nothing, because the other side holds them elsewhere."""

    @property
    def largest(self) -> JudgedOutput | None:
        """The output that differs the most, the first of several."""
        return max(self.outputs, key=lambda output: output.difference, default=None)

    def accuse(self, suspect: Unexplained | None) -> None:
        """Keep an item that nothing explains, unless one before it is kept already."""
        self.suspect = self.suspect or suspect
