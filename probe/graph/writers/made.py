"""A comparison as writers take it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from probe.graph.diff import GraphDiff
from probe.graph.page.columns import Columns


@dataclass(frozen=True)
class Made:
    """A comparison as it is written."""

    columns: Columns
    diff: Optional[GraphDiff] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The comparison itself, where a writer needs it."""
