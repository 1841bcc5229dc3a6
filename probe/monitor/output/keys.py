"""The inner keys of rows, by which alerts, TensorBoard and Python name them."""

from __future__ import annotations

from probe.common.report.trends import REDUCED, UNREDUCED

_FAMILIES = {UNREDUCED: "acc_grad", REDUCED: "post_grad"}
"""Families that have another name in keys than in files (seen)."""


def inner_key(family: str, name: str, stage: int, micro: int | None, rank: int) -> str:
    """The key of a row.

    Args:
        micro: The micro step; ``None`` if the family has none.

    Example:
        >>> inner_key("grad_reduced", "head.weight", 0, None, 1), inner_key("actv", "head.input", 0, 2, 0)
        ('0:head.weight/rank1/post_grad', '0:head.input:2/rank0/actv')
    """
    return f"{stage}:{name}{'' if micro is None else f':{micro}'}/rank{rank}/{_FAMILIES.get(family, family)}"
