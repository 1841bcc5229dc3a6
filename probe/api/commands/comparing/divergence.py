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

    found = fails(summaries, "divergence")
    if not found and is_unjudged(summaries):
        text, _ = headline(summaries)[0]
        invocation.problem(f"cannot be told whether the runs diverge: {text}")
    return found
