"""The precision in which a run computes matrix products of float32, as its environment says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probe.common.environment.files import Environment
from probe.common.numerics.formats import unit_roundoff

_TF32 = 2.0**-11
"""The unit roundoff of TF32, whose significand has 11 bits, as that of float16 has."""
_NAMED = {"high": _TF32, "medium": unit_roundoff("bfloat16")}
"""The same of the values of `torch.set_float32_matmul_precision`, at worst; ``highest`` is float32."""


def product_roundoff(environments: Iterable[Environment | None]) -> float:
    """The coarsest unit roundoff of products of float32 in these runs; 0 if they are computed in float32.

    A switch that is on counts on any device: a device that does not obey it rounds less.
    """
    found = [0.0]
    for environment in environments:
        switches = (environment or {}).get("switches")
        if isinstance(switches, Mapping):
            found.append(_TF32 if switches.get("matmul_tf32") is True else 0.0)
            found.append(_NAMED.get(str(switches.get("float32_matmul_precision")), 0.0))
    return max(found)
