"""The origin of the first divergence."""

from __future__ import annotations

from dataclasses import dataclass

from probe.compare.evidence import Evidence, Unexplained

PARAMETER, INPUT_OF_CALL, COMPUTE, KIND = "parameter", "input", "compute", "structure"
"""The origins of a divergence: a parameter, an input that no recorded call gave, the computation of the call, or a
call, a shape or an argument that one side alone has."""


@dataclass(frozen=True)
class Origin:
    """The origin of the first divergence."""

    kind: str
    """`PARAMETER`, `INPUT_OF_CALL`, `COMPUTE` or `KIND`."""
    module: int
    """The innermost module around the call, or the call if it is one, on the side that made it; -1 without a tree."""
    item: str = ""
    """The item that shows it; empty of a call that one side alone made."""
    parameter: str = ""
    """The parameter that it is, as its module calls it: ``weight``."""
    is_nonfinite: bool = False
    """True if one side has a NaN or an infinity there, and the other has none."""


def origin_of(found: Unexplained, module: int, evidence: Evidence) -> Origin:
    """The origin of a finding.

    Args:
        module: the node of the module that it is in.
        evidence: what was seen on the way to it.
    """
    shown = evidence.shown_item(found)
    if shown is None:
        return Origin(KIND, module, found.item)
    if shown.parameter:
        return Origin(PARAMETER, module, found.item, shown.parameter, shown.is_nonfinite)
    target, golden = shown.row.target, shown.row.golden
    if target is not None and golden is not None and target.shape != golden.shape:
        return Origin(KIND, module, found.item)
    return Origin(INPUT_OF_CALL if shown.is_input else COMPUTE, module, found.item, "", shown.is_nonfinite)
