"""The known names that are most like an unknown one: records, keys, flags, commands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

MOST = 3
"""The largest number of names."""
_MOST_COMPARED = 5000
"""Names among which the nearest are looked for, which takes 0.1 s."""
_LONGEST_COMPARED = 200
"""Characters that are compared; a guess."""
_NEAR = 0.6
"""The least similarity; the default of difflib."""


def nearest(wanted: str, names: Iterable[str]) -> list[str]:
    """The names most like `wanted`, the nearest first; none where none is like it.

    Args:
        wanted: a name that a user gave.
        names: the names that there are; of very many the first thousands are looked at.

    Example:
        >>> nearest("Torch.rellu", ["Torch.add", "Torch.relu"])
        ['Torch.relu']
    """
    return difflib.get_close_matches(wanted[:_LONGEST_COMPARED], islice(names, _MOST_COMPARED), MOST, _NEAR)


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """``; did you mean "compare"?``, with the most similar name; empty if no name is similar."""
    near = nearest(wanted, names)
    return f'; did you mean "{near[0]}"?' if near else ""
