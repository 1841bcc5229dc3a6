"""The way in which the calls of two runs were paired: what the search for the first divergence, and the table, are
about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from probe.common.align.options import MatchOptions

NAMES, KINDS, MAPPING, LAYERS = "names", "kinds", "mapping", "layers"


@dataclass(frozen=True)
class Pairing:
    """The pairs of names."""

    by: str = NAMES
    """``names``; ``kinds`` with ``-fm``; ``mapping`` where one was given; ``layers`` where one was worked out."""
    same_name: int = 0
    """The number of calls that were paired with one of the same name."""
    other_name: int = 0
    """The number of calls that were paired with one of another name or number."""
    renamed: dict[str, str] = field(default_factory=dict)
    """By the name of a call of the target, another name of its golden call."""
    target_only: list[str] = field(default_factory=list)
    """Calls of the target without a counterpart."""
    golden_only: list[str] = field(default_factory=list)


def pairing(pairs: Iterable[tuple[str | None, str | None]], options: MatchOptions, aligned: bool = False) -> Pairing:
    """The way in which calls were paired.

    Args:
        pairs: the calls of the target with their counterparts; ``None`` where one side has none.
        options: what the user chose.
        aligned: true if a mapping of layers was worked out.
    """
    same = 0
    renamed: dict[str, str] = {}
    alone: tuple[list[str], list[str]] = [], []
    for record, golden in pairs:
        if record == golden:
            same += 1
        elif record is None or golden is None:
            alone[record is None].append(record or golden or "")
        else:
            renamed[record] = golden
    by = KINDS if options.fuzzy else MAPPING if options.maps_names else LAYERS if aligned else NAMES
    return Pairing(by, same, len(renamed), renamed, *alone)
