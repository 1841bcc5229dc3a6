"""A comparison as writers take it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from probe.graph.diff import GraphDiff
from probe.graph.page.columns import Columns


@dataclass(frozen=True)
class ShownComparison:
    """A comparison as it is written."""

    columns: Columns
    diff: Optional[GraphDiff] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The comparison itself, where a writer needs it."""
    exchanged: dict[int, Any] = field(default_factory=dict)
    """With what nodes of the target exchange data, as msProbe says it; where a writer needs it."""
    is_part: bool = False
    """True if it is one of the ranks that another comparison was merged of."""
