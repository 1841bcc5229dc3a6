"""The status of ``--fail-on``, which `compare` and `graph_visualize` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from probe.api.commands.invocation import Invocation

if TYPE_CHECKING:
    from probe.compare.output.summary import Summary

DIVERGENCE, NEVER = "divergence", "never"
"""Values of the flag; `compare` has the levels of rows besides."""


def is_failed(summaries: Sequence[Summary], level: str, invocation: Invocation) -> bool:
    """Return True if the runs differ by as much as `level`; if that cannot be told, it is reported as a problem."""
    from probe.compare.output.summary import fails

    if level == NEVER:
        return False
    if fails(summaries, level):
        return True
    report_untold(summaries, level, invocation)
    return False


def report_untold(summaries: Sequence[Summary], level: str, invocation: Invocation) -> None:
    """Report as a problem that runs without a difference of this level may have one in what was not compared."""
    why = _why_untold(summaries, level)
    if why:
        what = "the runs diverge" if level == DIVERGENCE else f"--fail-on {level} applies"
        invocation.problem(f"cannot be told whether {what}: {why}")


def _why_untold(summaries: Sequence[Summary], level: str) -> str:
    """Reason why a difference of this level is not excluded; empty if it is."""
    from probe.compare.output.summary import is_unjudged
    from probe.compare.output.summary_text import UNTOLD, headline, uncompared

    if not summaries:
        return "no dump of one has a counterpart in the other"
    if level == DIVERGENCE:
        said = headline(summaries)[:1] if is_unjudged(summaries) else []
    else:
        said = uncompared(summaries)[:1]
    return "".join(text for text, _ in said).removeprefix(f"{UNTOLD}: ")
