"""The status of ``--fail-on divergence``, which `compare` and `graph_visualize` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.api.commands.invocation import Invocation

if TYPE_CHECKING:
    from probe.compare.output.summary import Summary


def diverges(summaries: Sequence[Summary], invocation: Invocation) -> bool:
    """Return True if the runs diverge; if that cannot be told, it is reported as a problem."""
    from probe.compare.output.summary import fails, is_unjudged
    from probe.compare.output.summary_text import headline

    if fails(summaries, "divergence"):
        return True
    if not summaries or is_unjudged(summaries):
        why = headline(summaries)[0][0] if summaries else "no dump of one has a counterpart in the other"
        invocation.problem(f"cannot be told whether the runs diverge: {why}")
    return False
