"""What is true of a generated case, read from the call stacks of its dump: the record that bears the mark of the fault.

The function at fault is called through ``planted`` in ``planting.py``, and through nothing else. A call bears the mark
where the first frame that is of these programs, and not of torch, is that function.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OWN = re.compile(r"File .*[/\\]generated[/\\]\w+\.py, line \d+, in (\S+),")


@dataclass(frozen=True)
class Truth:
    """What the first findings of a case have to be."""

    case: str
    kind: str
    fault: str
    setting: str
    step: int | None
    """``None`` where nothing is wrong."""
    required: dict[int, tuple[str, ...]]
    """By rank the records of which one has to be named."""
    allowed: dict[int, tuple[str, ...]]
    """Records that may be named as well."""
    kinds: tuple[str, ...]
    """What kind the required findings may be of."""


def truth_of(folder: Path) -> Truth:
    """The truth about one case.

    Raises:
        LookupError: no record bears the mark, so that nothing is known.
    """
    plan = json.loads((folder / "plan.json").read_text("utf-8"))
    required = {rank: _records(folder, plan, rank) for rank in plan["required"]}
    allowed = {rank: _records(folder, plan, rank, False) for rank in plan["allowed"]}
    return Truth(
        folder.name, plan["kind"], plan["fault"], f"{plan['level']}, {plan['world']} ranks", plan["step"], required,
        allowed, tuple(plan["kinds"]),
    )  # fmt: skip


def _records(folder: Path, plan: dict[str, Any], rank: int, has_to_be_bad: bool = True) -> tuple[str, ...]:
    files = folder / f"step{plan['step']}" / f"rank{rank}"
    data = json.loads((files / "dump.json").read_text("utf-8"))["data"]
    order = list(data)
    stacks = json.loads((files / "stack.json").read_text("utf-8")).values()
    frames = {name: list(map(str, of_call)) for names, of_call in stacks for name in names if name in order}
    marked = [name for name in order if _is_marked(frames.get(name, []))]
    below = [name for name in order if any(" in planted," in frame for frame in frames.get(name, []))]
    if not (below if plan["picked"] == "first" else marked):
        raise LookupError(f"{files}: no record bears the mark of the fault {plan['fault']}")
    if plan["picked"] == "any":
        return tuple(name for name in marked if not name.startswith("Module."))
    if plan["picked"] == "first":
        return _first(marked, below)
    # A module that was called through the mark, too, has the function at fault inside of it.
    innermost = max(marked, key=lambda name: (not name.startswith("Module."), len(frames[name])))
    if plan["is_backward"]:
        innermost = re.sub(r"\bforward\b", "backward", innermost)
    if has_to_be_bad and not _is_bad(data[innermost]["output"]):
        raise LookupError(f"{files}: the output of {innermost} is finite, so that {plan['fault']} is no fault")
    return (innermost,)


def _is_bad(entry: Any) -> bool:
    """Whether a tensor in an entry has a NaN or an infinity."""
    if isinstance(entry, list):
        return any(map(_is_bad, entry))
    if not isinstance(entry, dict):
        return False
    extremes = [entry[key] for key in ("Max", "Min") if isinstance(entry.get(key), float)]
    return any(not math.isfinite(value) for value in extremes) or any(map(_is_bad, entry.values()))


def _is_marked(frames: Sequence[str]) -> bool:
    own = (found[1] for found in map(_OWN.match, frames) if found)
    return next((name for name in own if name != "<lambda>"), "") == "planted"


def _first(marked: Sequence[str], below: Sequence[str]) -> tuple[str, ...]:
    """The first call that was made with the mark: as a module, and as what it calls first."""
    modules = [name for name in marked if name.startswith("Module.")]
    functions = [name for name in below if not name.startswith("Module.")]
    return (*modules[:1], *functions[:1], *below[:1])
