"""The status of a node by the judgement of ``compare``, and the origin of its pair."""

from __future__ import annotations

NO_DATA, SAME, EXPLAINED, FOLLOWS, STRUCTURE, ONE_SIDE, SUSPECT, DIVERGED = range(8)
"""The statuses of a node in order of severity.

`EXPLAINED` differs by no more than its inputs and rounding explain; `FOLLOWS` has a NaN or an infinity that came in
from an earlier call, or belongs to a step that a divergence of an earlier one has reached; `STRUCTURE` differs in a
shape, a type or an argument that changes no value, or in values that change nothing which is computed from them;
`SUSPECT` is one of the later calls that nothing explains, and `DIVERGED` the first of them, or a call that makes values
which are not finite on one side only.
"""

STATUSES = ("no data", "same", "explained", "follows", "structure", "one side only", "suspect", "diverged")
"""Their names."""

STRUCTURE_MODE = "structure"
"""The mode of dumps that hold calls and no values: the ``task`` that they were collected with."""

ALONE, EXACT, ALIGNED, FUZZY, MAPPING, MANUAL = range(6)
"""The reasons why two nodes are a pair: they have the same name below nodes that are a pair for the same reason; they
have the same place and kind; with ``-fm``; by a mapping file; by hand. `ALONE` has no partner."""

REASONS = ("", "exact", "aligned", "fuzzy", "mapping", "manual")
"""Their names."""
