"""Values of which nothing was decided: they may differ by as much as a fault makes, and be explained.

A bound as large as the value decides nothing. Such a value is judged if something shows it all the same: the calls
inside of the call, which are judged themselves, or the module right around it, if the share of the value in what that
module returns is large enough.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.dump.naming import is_module
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent, rms
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.differences import item_name
from probe.compare.divergence.effects import key_of
from probe.compare.divergence.search.observed import JudgedOutput
from probe.compare.divergence.search.runs import Runs
from probe.compare.result import Difference


def not_judged(runs: Runs, outputs: Sequence[JudgedOutput]) -> list[Difference]:
    """The first output that was not judged, and that nothing around it shows.

    Args:
        runs: the runs, of which one at least has a short type.
        outputs: the outputs of forward calls that no bound decides.
    """
    inside: dict[str | None, list[AlignedCall]] = {}
    for call in runs.calls if outputs else ():
        inside.setdefault(runs.tree.get(call.record or ""), []).append(call)
    for output in outputs:
        record = output.row.record
        if _is_shown_inside(runs, output, inside.get(record, [])) or _is_shown_around(runs, output):
            continue
        reason = differences.of_not_judged(output.row, output.allowed)
        return [Difference(record, output.row.golden_record or "", item_name(output.row), reason, output.allowed, True)]
    return []


def _is_shown_inside(runs: Runs, output: JudgedOutput, inside: Sequence[AlignedCall]) -> bool:
    """True if calls inside of the call are judged, which make the output.

    At level L0 they are all that it does if one of them returns the output.
    """
    if not runs.modules_only:
        return bool(inside)
    own = key_of(output.target), key_of(output.golden)
    pairs = ((row.target, row.golden) for call in inside for row in call.rows if not is_input(row))
    return any(each is not None and other is not None and (key_of(each), key_of(other)) == own for each, other in pairs)


def _is_shown_around(runs: Runs, output: JudgedOutput) -> bool:
    """True if another output of the call, or a module around it, would show an output that is another."""
    call = runs.by_record.get(output.row.record)
    if call is not None and _shows(runs, call, None):
        return True
    around, seen = runs.tree.get(output.row.record), set[str]()
    while around and around not in seen and is_module(around):
        seen.add(around)
        module = runs.by_record.get(around)
        if module is not None and module.golden_record and _shows(runs, module, output.golden):
            return True
        around = runs.tree.get(around)
    return False


def _shows(runs: Runs, call: AlignedCall, part: Item | None) -> bool:
    """True if what a call returns is judged, and would show a difference of a part that was added to it."""
    for row in call.rows:
        if is_input(row) or row.golden is None:
            continue
        share = 1.0
        if part is not None and extent(part.shape).elements == extent(row.golden.shape).elements:
            share = min(1.0, rms(part) / (rms(row.golden) or 1.0))
        if runs.peers.decides(row, share):
            return True
    return False
