"""The findings of a comparison of two configurations, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

PASS, INFO, WARNING, ERROR = LEVELS = ("pass", "info", "warning", "error")


@dataclass(frozen=True)
class Finding:
    """One difference.

    Args:
        name: What differs, as ``NCCL_ALGO``, ``lr (golden: learning_rate)``, ``step 0, rank 0: fc.weight``.
        golden: The value of the first pack; ``None`` if it has none.
        target: The value of the second pack.
        level: ``info``, ``warning`` or ``error``.
        why: The reason why it matters, in one sentence.
        names: The names of a setting or a variable in both runs, where they may differ.
        file: The file in which a setting is written.
        how: How names that differ were paired.
        golden_place: The place of the value of the first pack, if it is another one than the name has.
    """

    name: str
    golden: Any
    target: Any
    level: str
    why: str
    names: tuple[str, str] = ("", "")
    file: str = ""
    how: str = ""
    golden_place: str = ""

    def as_json(self) -> dict[str, Any]:
        """The difference as ``config_check.json`` has it."""
        return {name: getattr(self, name) for name in ("name", "golden", "target", "level", "why")}


def worst(levels: Iterable[str]) -> str:
    """The worst of some levels; ``pass`` if there is none."""
    return max(levels, key=LEVELS.index, default=PASS)


@dataclass(frozen=True)
class Check:
    """One check of both packs; without rows it passes."""

    name: str
    rows: list[Finding] = field(default_factory=list)

    @property
    def level(self) -> str:
        return worst(row.level for row in self.rows)


@dataclass(frozen=True)
class Comparison:
    """The checks that both packs allow.

    Args:
        golden: The path of the first pack or dump.
        target: The path of the second one.
        checks: In the order in which they are to be put right.
        withheld: Differences that are counted and not named, because they may be secrets.
        not_compared: The names of checks for which one of the packs lacks the data.
    """

    golden: str
    target: str
    checks: Sequence[Check]
    withheld: int = 0
    not_compared: Sequence[str] = ()

    @property
    def answer(self) -> str:
        """``pass``, ``warning`` or ``error``."""
        found = worst(check.level for check in self.checks)
        return PASS if found == INFO else found

    def as_json(self) -> dict[str, Any]:
        """The content of ``config_check.json``."""
        return {
            "answer": self.answer,
            "golden": self.golden,
            "target": self.target,
            "checks": {
                check.name: {"level": check.level, "rows": [row.as_json() for row in check.rows]}
                for check in self.checks
            },
            "withheld": self.withheld,
            "not_compared": list(self.not_compared),
        }
