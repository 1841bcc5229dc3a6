"""Calls that draw random numbers, behind which no value can be compared with another."""

from __future__ import annotations

from probe.common.numerics.error_bounds import is_same
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has
from probe.common.operations.signatures import argument_name
from probe.compare.verdict.facts import Call
from probe.compare.verdict.two_runs import TwoRuns


def draws(runs: TwoRuns, call: Call) -> bool:
    """True if a call of a function or of a module draws random numbers."""
    name = call.function.lower()
    if has(name, Trait.DRAWS, Trait.DROPS, Trait.DRAWS_INSIDE):
        return True
    return has(name, Trait.MAY_DROP_INSIDE) and _drops_inside(runs, call)


def _drops_inside(runs: TwoRuns, call: Call) -> bool:
    """True if a call is told to set a share of what it computes with to zero at random."""
    shares: list[object] = []
    if call.is_module and call.parsed is not None:
        settings = runs.settings[0].get(call.parsed.base)
        shares = [] if settings is None or not settings.training else [settings.values.get("dropout")]
    else:
        for row in call.inputs:
            if row.target is not None and row.target.value is not None and "drop" in argument_name(
                call.name, row.target.name
            ):  # fmt: skip
                shares.append(row.target.value)
    return any(type(share) in (int, float) and share != 0 for share in shares)


def draws_on_one_side(call: Call) -> bool:
    """True if one side alone returns its argument as it is."""
    result = next((row for row in call.outputs if row.target is not None and row.golden is not None), None)
    taken = next((row for row in call.inputs if row.target is not None and row.golden is not None), None)
    if result is None or taken is None:
        return False
    sides = (taken.target, result.target), (taken.golden, result.golden)
    kept = [one is not None and other is not None and is_same(one, other) for one, other in sides]
    return kept[0] != kept[1]
