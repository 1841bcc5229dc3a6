"""The manifest of a page: what is on it, in plain JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Optional

import numpy as np

from probe._version import __version__
from probe.common.dump.naming import differ
from probe.common.dump.stack_text import parse_frame
from probe.compare.evidence import VALUES, Mode, Summary, Unexplained, hints, users_line
from probe.graph.overflow_levels import LEVELS
from probe.graph.page.columns import Columns, name_of
from probe.graph.pairing import REASONS, STRUCTURE_MODE
from probe.graph.rules import GraphRules

_NEAR = 8
"""Calls behind one of one side alone among which one from the same line is looked for. A guess: a line makes few."""


def card(columns: Columns) -> dict[str, Any] | None:
    """Content of the card; ``None`` without a verdict of ``compare``, whose lines are shown then.

    Rows and names are those of the comparison; what differs between the runs comes last.
    """
    summary = columns.summary
    if summary is None:
        return None
    found: dict[str, Any] = {"outside": [each.text for each in summary.outside], "hints": hints(summary)}
    divergence = summary.divergence
    if divergence is not None and summary.follows is None:
        call = divergence.first
        stacks = [users_line(stack) if stack else "" for stack in (divergence.stack, divergence.golden_stack)]
        if not all(stacks):
            stacks = [stack or _beside(columns, stacks, side) for side, stack in enumerate(stacks)]
        found.update(cause=call.shown_cause, effect=call.shown_reason, lines=stacks)
        found.update(item=_item(call), found=call.found, allowed=call.allowed)
    return found


def _beside(columns: Columns, lines: Sequence[str], side: int) -> str:
    """The line of one side near a call that the other alone makes: of the next call from the same function."""
    owner = _function_of(lines[1 - side])
    stacks = columns.golden_stack if side else columns.stack
    for row in range(columns.first + 1, min(columns.first + _NEAR, len(columns))) if owner else ():
        if (index := int(stacks[row])) >= 0:
            line = users_line([columns.frames[frame] for frame in columns.stacks[index]])
            if _function_of(line) == owner:
                return line
    return ""


def _function_of(line: str) -> str:
    """The name of the file and the function of a frame."""
    frame = parse_frame(line)
    return f"{frame.file} {frame.function}" if frame is not None else ""


def is_partial(summary: Summary | None) -> bool:
    """True if one side ends early or records less, so that the answer is on a part of the run."""
    return summary is not None and (differ(summary.levels) or any(end.more or end.died for end in summary.truncations))


def judged_items(columns: Columns) -> list[str]:
    """The item that shows each named divergence, as ``input.0``: that of the first, then those of the suspects."""
    divergence = None if columns.summary is None else columns.summary.divergence
    return [] if divergence is None else list(map(_item, (divergence.first, *divergence.suspects)))


def _item(call: Unexplained) -> str:
    """The item as its row has it: ``output.0``."""
    record = next((each for each in (call.record, call.golden_record) if call.item.startswith(f"{each}.")), "")
    return call.item[len(record) + 1 :] if record else call.item


# --- manifest


FORMAT = 1
"""The form of the data; a page refuses one that it does not know."""


@dataclass
class Manifest:
    """The common data of all comparisons of a page."""

    title: str
    rules: GraphRules
    unpaired: list[str] = field(default_factory=list)
    """The nodes that one side alone has, a sentence each."""
    first: Optional[int] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The comparison that diverges first, by its number; known when all were made."""

    said: Sequence[str] = ()
    """The answer of the command that writes the page besides its own files."""
    arguments: dict[str, list[str]] = field(default_factory=dict)
    """The names of arguments by function, of all comparisons."""

    def as_json(self, comparisons: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The manifest of a page with these comparisons, whose blocks are all in one file."""
        in_tensors = any(comparison["mode"] == Mode.TENSOR.value for comparison in comparisons)
        return {
            "format": FORMAT,
            "tool": f"msprobe {__version__}",
            "title": self.title,
            "rules": self.rules.name,
            "statuses": [asdict(status) for status in self.rules.statuses],
            "reasons": list(REASONS),
            "levels": list(LEVELS),
            "metrics": list(VALUES) if in_tensors else [],
            "files": 0,
            "blocks": {},
            "unpaired": self.unpaired,
            "said": list(self.said),
            "arguments": self.arguments,
            "first": self.first,
            "comparisons": list(comparisons),
        }


def comparison_as_json(columns: Columns, rules: GraphRules) -> dict[str, Any]:
    """The part of the manifest for one comparison."""
    counts = np.bincount(columns.status, minlength=len(rules.statuses)).tolist()
    first, suspects = rules.named_rows(columns)
    follows = columns.summary is not None and columns.summary.follows is not None
    if follows:
        # Values that a divergence has reached are not judged again.
        first, suspects = -1, []
    return {
        "target": asdict(columns.target),
        "golden": None if columns.golden is None else asdict(columns.golden),
        "run": columns.run,
        "step": columns.step,
        "rank": columns.rank,
        "place": columns.dump_name,
        "mode": columns.mode,
        "measured": columns.is_measured,
        "verdict": verdict(columns, rules),
        "card": card(columns),
        "judged": [] if follows else judged_items(columns),
        "partial": is_partial(columns.summary) or bool(columns.golden is None and columns.target.ending),
        "roots": list(columns.code.roots),
        "answer": None if columns.summary is None else columns.summary.answer,
        "follows": follows,
        "first": first if first >= 0 else None,
        "first_name": name_of(columns, first) if first >= 0 else "",
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


def chain(columns: Columns, row: int) -> list[int]:
    """The rows around a row, innermost first, without the root."""
    found: list[int] = []
    root = len(columns) - 1
    while 0 <= row < root:
        row += int(columns.parent[row])
        found.append(row)
    return found[:-1]


def verdict(columns: Columns, rules: GraphRules) -> list[str]:
    """The first lines of ``msprobe compare``; for one dump, and for dumps without values, the lines that apply."""
    said = rules.verdict(columns) if columns.golden is not None else []
    if said:
        return said
    if columns.golden is None:
        row = columns.nonfinite
        finite = "no NaN and no infinity" if row < 0 else f"first NaN or infinity: {name_of(columns, row)}"
        return [finite if columns.mode != STRUCTURE_MODE else f"{columns.target.nodes} calls, without values"]
    alone = int(np.count_nonzero((columns.name < 0) | (columns.golden_name < 0)))
    if not alone:
        return ["no difference: both runs make the same calls"]
    row = int(np.flatnonzero((columns.name < 0) | (columns.golden_name < 0))[0])
    side = "golden run" if columns.name[row] < 0 else "target"
    return [f"first difference: {name_of(columns, row)} ({side} only)", f"  {alone} calls on one side only"]
