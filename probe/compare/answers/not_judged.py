"""Values of which nothing was decided: they may differ by as much as a fault makes, and be explained.

A bound as large as the value decides nothing. Such a value is judged if something shows it all the same: the calls
inside of the call, which are judged themselves, or the module right around it, if the share of the value in what that
module returns is large enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile

from probe.common.dump.naming import function_name, is_forward, is_module
from probe.common.dump.reading.call_tree import around
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import extent, rms
from probe.common.operations.function import ACTIVATION, ELEMENTWISE, EXACT, ROUNDED_ONCE
from probe.common.operations.lookup import canonical, function
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.differences import item_name
from probe.compare.divergence.effects import key_of
from probe.compare.divergence.search.observed import JudgedOutput
from probe.compare.divergence.search.runs import Runs
from probe.compare.result import Difference

_ADDITIONS = ("add", "iadd", "radd")
_ALONE = (EXACT, ROUNDED_ONCE, ELEMENTWISE, ACTIVATION)


def not_judged(runs: Runs, outputs: Sequence[JudgedOutput]) -> list[Difference]:
    """The first output that was not judged, and that nothing around it shows.

    Args:
        runs: the runs, of which one at least has a short type.
        outputs: the outputs that no bound decides: of forward calls, and gradients that are mostly rounding.
    """
    search = _Search(runs)
    for output in outputs:
        record = output.row.record
        # What is made element by element is wrong if what it is made of is wrong, or an argument is another.
        if function(function_name(record)).rounding in _ALONE or search.shows(output):
            continue
        explained = min(output.allowed, runs.peers.allowed(output.row))
        reason = differences.of_not_judged(output.row, explained)
        return [Difference(record, output.row.golden_record or "", item_name(output.row), reason, explained, True)]
    return []


class _Search:
    """Looks for values that show an output."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    @cached_property
    def _made_in(self) -> dict[str | None, list[AlignedCall]]:
        found: dict[str | None, list[AlignedCall]] = {}
        for call in self._runs.calls:
            found.setdefault(self._runs.tree.get(call.record or ""), []).append(call)
        return found

    def shows(self, output: JudgedOutput) -> bool:
        """True if calls inside of the call, another output of it, or a module around it show the output."""
        record = output.row.record
        if not is_forward(record):
            return False  # Nothing is computed from the gradient of a parameter, and other gradients do not hold it.
        made_in = self._made_in.get(record, [])
        # At level L0 the calls inside are all that it does if one of them returns the output.
        if made_in and (not self._runs.modules_only or self._maker(made_in, output.target, output.golden) is not None):
            return True
        call = self._runs.by_record.get(record)
        if call is not None and self._decides(call, None):
            return True
        modules = map(self._runs.by_record.get, takewhile(is_module, around(self._runs.tree, record)))
        return any(each is not None and each.golden_record and self._decides(each, output.golden) for each in modules)

    def _decides(self, call: AlignedCall, part: Item | None) -> bool:
        """True if what a call returns is judged, and would show that a part which may be added to it is another."""
        for row in call.rows:
            if is_input(row) or row.golden is None or row.target is None:
                continue
            share = 1.0
            if part is not None and extent(part.shape).elements == extent(row.golden.shape).elements:
                maker = self._maker(self._made_in.get(call.record, []), row.target, row.golden)
                if maker is None or canonical(function_name(maker.record or "")) in _ADDITIONS:
                    share = min(1.0, rms(part) / (rms(row.golden) or 1.0))
            if self._runs.peers.decides(row, share):
                return True
        return False

    @staticmethod
    def _maker(calls: Sequence[AlignedCall], target: Item, golden: Item) -> AlignedCall | None:
        """The last of some calls that returns a tensor, on both sides."""
        own = key_of(target), key_of(golden)
        for call in reversed(calls):
            for row in call.rows:
                if is_input(row) or row.target is None or row.golden is None:
                    continue
                if (key_of(row.target), key_of(row.golden)) == own:
                    return call
        return None
