"""The level that two dumps share: modules at L0, functions at L1, both at mix."""

from __future__ import annotations

from typing import Optional

from probe.common.dump.naming import is_module

Levels = tuple[Optional[str], Optional[str]]
"""The levels of target and golden side; ``None`` in files that do not say."""


def differ(levels: Levels) -> bool:
    """True if one side records what the other does not."""
    return None not in levels and levels[0] != levels[1]


def both_record(record: str, levels: Levels) -> bool:
    """True if a record of this name can be there on both sides."""
    if not differ(levels):
        return True
    return "L1" not in levels if is_module(record) else "L0" not in levels


def in_words(levels: Levels) -> str:
    """The difference in a sentence; empty where there is none."""
    if not differ(levels):
        return ""
    both = {"L0", "L1"} <= set(levels)
    what = "nothing is" if both else "only modules are" if "L0" in levels else "only functions are"
    return f'the target has level "{levels[0]}" and the golden run "{levels[1]}": {what} in both'
