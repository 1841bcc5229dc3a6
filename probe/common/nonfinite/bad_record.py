"""A record with values that are not finite, and what of it is not."""

from __future__ import annotations

from typing import NamedTuple

INPUT, PARAMETER, OUTPUT, EXPLAINED, UNWRITTEN = 1, 2, 4, 8, 16
"""The parts of a record that are not finite: an input, a parameter, an output. `EXPLAINED`: another record of this
rank, later in the file, made it. `UNWRITTEN`: its input is memory that was never written."""


class BadRecord(NamedTuple):
    """A record with values that are not finite."""

    place: int
    """The number of the record among those of its rank."""
    name: str
    flags: int
    input: str = ""
    """The first input or parameter that is not finite."""
    output: str = ""
    """The first output that is not finite."""
    unwritten: str = ""
    """The record that gave the memory which was never written."""
    inside: str = ""
    """The module of which all inputs are finite, where something inside of it that is not recorded made its input."""
    mask: str = ""
    """The record that made the infinities, which were asked for, of which this one made something else."""
