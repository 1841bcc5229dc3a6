"""The manifest of a page: what is on it, in plain JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

import numpy as np

from probe._version import __version__
from probe.compare.output.summary_text import headline
from probe.compare.output.tables import VALUES
from probe.compare.result import Mode
from probe.graph.overflow_levels import LEVELS
from probe.graph.page.columns import MSPROBE, PROBE, Columns
from probe.graph.recorded.statuses import ERROR, PASS, UNMATCHED, WARNING
from probe.graph.status import REASONS, STRUCTURE_MODE

FORMAT = 1
"""The form of the data; a page refuses one that it does not know."""


@dataclass(frozen=True)
class Status:
    """One status as the page shows it."""

    key: str
    letter: str
    name: str
    hint: str
    colour: str
    problem: bool = False


STATUSES: dict[str, tuple[Status, ...]] = {
    PROBE: (
        Status("none", "·", "no data", "The dumps have no values of it to compare.", "none"),
        Status("same", "=", "same", "Both runs have the same values.", "good"),
        Status("explained", "~", "explained", "It differs as much as its inputs and rounding explain.", "neutral"),
        Status("structure", "S", "structure", "A shape, a type or an argument differs, and no value by it.", "info"),
        Status("alone", "1", "one side only", "The other run has no such call.", "alone"),
        Status("suspect", "?", "suspect", "It too differs by more than its inputs explain.", "warn", True),
        Status("diverged", "!", "diverged", "The first that nothing explains, or not finite on one side.", "bad", True),
    ),
    MSPROBE: (
        Status("none", "·", "no status", "msProbe gives it no colour.", "none"),
        Status("pass", "=", "pass", "msProbe passes it.", "good"),
        Status("unmatched", "1", "unmatched", "msProbe finds no counterpart.", "alone"),
        Status("warning", "?", "warning", "msProbe warns of it.", "warn", True),
        Status("error", "!", "error", "msProbe takes it for an error.", "bad", True),
    ),
}


@dataclass
class Manifest:
    """What all comparisons of a page have in common."""

    title: str
    rules: str = PROBE
    unpaired: list[str] = field(default_factory=list)
    """What one side alone has, a sentence each."""
    first: Optional[int] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The comparison that diverges first, by its number; known when all were made."""

    def as_json(self, comparisons: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The manifest of a page with these comparisons, whose blocks are all in one file."""
        in_tensors = any(comparison["mode"] == Mode.TENSOR.value for comparison in comparisons)
        return {
            "format": FORMAT,
            "tool": f"msprobe {__version__}",
            "title": self.title,
            "rules": self.rules,
            "statuses": [asdict(status) for status in STATUSES[self.rules]],
            "reasons": list(REASONS),
            "levels": list(LEVELS),
            "metrics": list(VALUES) if in_tensors else [],
            "files": 0,
            "blocks": {},
            "unpaired": self.unpaired,
            "first": self.first,
            "comparisons": list(comparisons),
        }


def comparison_as_json(columns: Columns, rules: str = PROBE) -> dict[str, Any]:
    """What the manifest says of one comparison."""
    counts = np.bincount(columns.status, minlength=len(STATUSES[rules])).tolist()
    first, suspects = named_rows(columns, rules)
    return {
        "target": asdict(columns.target),
        "golden": None if columns.golden is None else asdict(columns.golden),
        "run": columns.run,
        "step": columns.step,
        "rank": columns.rank,
        "place": columns.place,
        "mode": columns.mode,
        "verdict": verdict(columns, rules),
        "first": first if first >= 0 else None,
        "chain": chain(columns, first),
        "suspects": suspects,
        "origin": columns.origin,
        "nonfinite": columns.nonfinite if columns.nonfinite >= 0 else None,
        "golden_nonfinite": columns.golden_nonfinite if columns.golden_nonfinite >= 0 else None,
        "worst": int(columns.status.max()),
        "counts": counts,
        "micro_steps": int(columns.micro.max()) + 1,
        "notes": columns.notes,
        "rows": len(columns),
        "tensors": len(columns.tensors),
    }


def named_rows(columns: Columns, rules: str = PROBE) -> tuple[int, list[int]]:
    """The row of the first divergence, -1 without one, and those of the suspects.

    The rules of msProbe name no divergence: by them the first error and the first warning, or the one that there is.
    """
    if rules != MSPROBE or columns.golden is None:
        return columns.first, columns.suspects
    places = (np.flatnonzero(columns.status == status) for status in (ERROR, WARNING))
    found = [int(place[0]) for place in places if len(place)]
    return (found[0], found[1:]) if found else (-1, [])


def chain(columns: Columns, row: int) -> list[int]:
    """The rows around a row, innermost first, without the root."""
    found: list[int] = []
    root = len(columns) - 1
    while 0 <= row < root:
        row += int(columns.parent[row])
        found.append(row)
    return found[:-1]


def verdict(columns: Columns, rules: str = PROBE) -> list[str]:
    """What ``msprobe compare`` prints first; of one dump, and of dumps without values, what there is to say."""
    if rules == MSPROBE and columns.golden is not None:
        return _counts(columns)
    if columns.summary is not None:
        return [text for text, _ in headline([columns.summary])]
    if columns.golden is None:
        place = columns.nonfinite
        finite = "no NaN and no infinity" if place < 0 else f"first NaN or infinity: {name_of(columns, place)}"
        return [finite if columns.mode != STRUCTURE_MODE else f"{columns.target.nodes} calls, without values"]
    alone = int(np.count_nonzero((columns.name < 0) | (columns.golden_name < 0)))
    if not alone:
        return ["no difference: both runs make the same calls"]
    row = int(np.flatnonzero((columns.name < 0) | (columns.golden_name < 0))[0])
    side = "golden run" if columns.name[row] < 0 else "target"
    return [f"first difference: {name_of(columns, row)} ({side} only)", f"  {alone} calls of one side alone"]


def _counts(columns: Columns) -> list[str]:
    """How many nodes have which status by the rules of msProbe, which names no first divergence."""
    counts = np.bincount(columns.status, minlength=len(STATUSES[MSPROBE])).tolist()
    names = [status.name for status in STATUSES[MSPROBE]]
    numbers = ", ".join(f"{counts[status]} {names[status]}" for status in (ERROR, WARNING, PASS, UNMATCHED))
    found = [f"by the rules of msProbe: {numbers}"]
    first, others = named_rows(columns, MSPROBE)
    for row in [first, *others] if first >= 0 else []:
        found.append(f"  first {names[int(columns.status[row])]}: {name_of(columns, row)}")
    return found


def name_of(columns: Columns, row: int) -> str:
    """The name of a row: that of the target's node, or of the golden run's where it alone has it."""
    place = columns.name[row] if columns.name[row] >= 0 else columns.golden_name[row]
    return columns.texts[int(place)]
