"""Casts of modules to float8, by the call tree of a dump that may be damaged."""

from __future__ import annotations

from probe.common.environment.modules import ModuleSettings
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.casts import Casts

INNER, OUTER = "Module.a.b.Linear.forward.0", "Module.a.Block.forward.0"
FUNCTION = "Functional.linear.0.forward"


def test_a_call_tree_that_goes_round_in_a_circle_ends() -> None:
    settings = {"Module.a.Block": ModuleSettings("a.Block", casts=("float8_e4m3fn",))}
    tree = {FUNCTION: INNER, INNER: OUTER, OUTER: INNER}
    casts = Casts((settings, {}), (tree, {}))
    # Three bits after the leading one.
    assert casts.roundoff(AlignedCall(FUNCTION, FUNCTION, [])) == 2.0**-4
    assert casts.roundoff(AlignedCall("Functional.relu.0.forward", None, [])) == 0.0
