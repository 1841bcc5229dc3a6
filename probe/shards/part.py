"""The parts to merge: calls with their values, the tree around them, and the ranks from which they come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from probe.common.dump.reading.items import Shape


@dataclass(frozen=True)
class PartOfItem:
    """One item as a rank recorded it."""

    rank: int
    name: str
    shape: Optional[Shape]  # noqa: UP045 (evaluated, on Python 3.9 too)
    max: Any
    min: Any
    mean: Any
    norm: Any


@dataclass(frozen=True)
class MergedItem:
    """The way in which the values of an item were made of those of several ranks."""

    how: str
    """``split``: each rank has a piece of the tensor; ``sum``: each rank has a summand of it."""
    sentences: list[str]
    """One for each statistic, with its numbers, and one for the shape."""
    parts: list[PartOfItem]
    fields: Optional[dict[str, Any]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The fields of the record, with the shape of one piece, if it is not known along which dimension it is split."""


@dataclass
class Calls:
    """The calls of one rank, or of ranks that were merged already."""

    tree: dict[str, Optional[str]]  # noqa: UP045
    """Every call in the order of their beginnings, and the call it ran inside."""
    records: dict[str, dict[str, Any]]
    """The fields of each record, in the order in which the calls ended."""
    stacks: dict[str, list[str]]
    origins: dict[str, list[tuple[int, str]]]
    """The ranks that have each record and call, with its name there."""
    items: dict[str, MergedItem] = field(default_factory=dict)
    """The way in which items were merged, by their names; what all ranks have alike is not in it."""
    notes: list[str] = field(default_factory=list)
    sentences: dict[str, list[str]] = field(default_factory=dict)
    """More sentences on a call."""
