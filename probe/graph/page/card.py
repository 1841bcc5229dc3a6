"""The answer of a comparison in parts, from which the page makes a card of at most four lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.common.dump.levels import differ
from probe.common.dump.stack_text import parse_frame
from probe.compare.evidence import Summary, Unexplained, hints, users_line
from probe.graph.page.columns import Columns

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
