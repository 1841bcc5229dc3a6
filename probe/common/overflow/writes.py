"""Which inputs of a call are only written to, so that what stood in them before means nothing."""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.dump.naming import function_name
from probe.common.dump.reading.records import Item

_ITEM = "__setitem__"
_FILLED = frozenset((
    _ITEM, "copy_", "fill_", "zero_", "set_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
    "geometric_", "cauchy_", "log_normal_", "trunc_normal_", "constant_", "zeros_", "ones_", "_foreach_copy_",
    "_foreach_zero_",
))  # fmt: skip
"""Functions that write to their first input."""


def reads(name: str, inputs: Sequence[Item]) -> list[Item]:
    """The inputs of a call that it reads.

    Args:
        name: of the record.
        inputs: its tensors.
    """
    written = {f"{name}.input.out"}
    if function_name(name) in _FILLED:
        written.add(f"{name}.input.0")
    prefix = f"{name}.input.out."
    return [item for item in inputs if item.name not in written and not item.name.startswith(prefix)]


def fills(name: str) -> bool:
    """Whether a call writes into a tensor of which its record does not say what it holds then."""
    return function_name(name) == _ITEM
