"""Where the first divergence comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from probe.compare.divergence.call_digest import is_input, row_difference
from probe.compare.divergence.differences import item_name
from probe.compare.divergence.judged_calls import JudgedCall
from probe.compare.result import Mode, Unexplained

PARAMETER, INPUT_OF_CALL, COMPUTE, KIND = "parameter", "input", "compute", "structure"
"""Where a divergence comes from: a parameter, an input that no recorded call gave, what the call computes, or a call, a
shape or an argument that one side alone has."""


@dataclass(frozen=True)
class Origin:
    """Where the first divergence comes from."""

    kind: str
    """`PARAMETER`, `INPUT_OF_CALL`, `COMPUTE` or `KIND`."""
    module: int
    """The innermost module around the call, or the call if it is one, on the side that made it; -1 without a tree."""
    item: str = ""
    """The item that shows it; empty of a call that one side alone made."""
    parameter: str = ""
    """The parameter that it is, as its module calls it: ``weight``."""
    is_nonfinite: bool = False
    """Whether one side has a NaN or an infinity there, and the other has none."""


def origin_of(found: Unexplained, module: int, judged_calls: Iterable[JudgedCall], mode: Mode) -> Origin:
    """The origin of a finding.

    Args:
        module: the node of the module that it is in.
        judged_calls: what was said of each call on the way to it.
        mode: what the dumps are compared by.
    """
    judged = next((each for each in judged_calls if each.suspect and _is_of(each.suspect, found)), None)
    rows = [] if judged is None else judged.call.rows
    row = next((row for row in rows if found.item and item_name(row) == found.item), None)
    if judged is None or row is None or row.target is None or row.golden is None:
        return Origin(KIND, module, found.item)
    is_nonfinite = row.target.is_tensor and math.isinf(row_difference(row, mode))
    if judged.parameter:
        return Origin(PARAMETER, module, found.item, judged.parameter, is_nonfinite)
    if row.target.shape != row.golden.shape:
        return Origin(KIND, module, found.item)
    return Origin(INPUT_OF_CALL if is_input(row) else COMPUTE, module, found.item, "", is_nonfinite)


def _is_of(suspect: Unexplained, found: Unexplained) -> bool:
    return (suspect.record, suspect.golden_record) == (found.record, found.golden_record)
