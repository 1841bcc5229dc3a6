"""The inner keys of rows, by which alerts, TensorBoard and Python name them."""

from __future__ import annotations

from probe.common.report.trends import REDUCED, UNREDUCED, TrendRow, TrendTable

_FAMILIES = {UNREDUCED: "acc_grad", REDUCED: "post_grad"}
"""Families that have another name in keys than in files (seen)."""


def row_key(table: TrendTable, row: TrendRow, rank: int) -> str:
    """The key of a row.

    Example:
        ``0:head.input:0/rank0/actv``
    """
    micro = f":{row.micro}" if table.has_micro else ""
    return f"{row.chunk}:{row.name}{micro}/rank{rank}/{_FAMILIES.get(table.family, table.family)}"
