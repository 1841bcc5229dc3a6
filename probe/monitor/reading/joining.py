"""Rows of the shards of one parameter, on several ranks, as one row of the whole."""

from __future__ import annotations

import ast
import math
import re
from typing import Any

_KEY = ("step", "micro_step", "vpp_stage", "family", "name")
_PLACEMENT = "placement"
_SHARD = re.compile(r"\bS\(|_S\(|Shard\(")
"""``S(0)``, as torch writes a placement, or ``Shard(dim=0)``."""


def join_shards(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The table with one row for the shards of each parameter, of the lowest rank, and all other rows as they are.

    If a rank is missing, so that its shards do not make up whole copies of the parameter, they stay rows of their own.

    Sums are divided by the number of copies where shards are replicated. A statistic that does not follow from those of
    the shards, such as ``kurtosis``, is NaN.
    """
    if _PLACEMENT not in columns:
        return columns
    groups: dict[tuple[Any, ...], list[int]] = {}
    order: list[list[int]] = []
    keys = [columns[name] for name in _KEY if name in columns]
    for row, placement in enumerate(columns[_PLACEMENT]):
        if not isinstance(placement, str) or not _SHARD.search(placement):
            order.append([row])
            continue
        key = tuple(column[row] for column in keys)
        if key not in groups:
            groups[key] = []
            order.append(groups[key])
        groups[key].append(row)
    joined: dict[str, list[Any]] = {name: [] for name in columns}
    for rows in order:
        whole = shape_of(columns[_PLACEMENT][rows[0]].rpartition(" of ")[2]) if len(rows) > 1 else None
        counts = [math.prod(shape_of(columns["shape"][row]) or ()) for row in rows]
        copies = sum(counts) / (math.prod(whole or ()) or math.inf)
        is_whole = bool(whole) and copies > 0 and copies.is_integer()
        for name, column in columns.items():
            values = [column[row] for row in rows]
            if not is_whole:
                joined[name] += values
            elif name == "shape":
                joined[name].append(str(whole))
            elif name == _PLACEMENT:
                joined[name].append(f"joined from {len(rows)} ranks")
            elif name == "rank":
                joined[name].append(min(values))
            elif name == "dtype" or name in _KEY:
                joined[name].append(values[0])
            else:
                joined[name].append(_of_whole(name, values, counts, copies))
    return joined


def _of_whole(op: str, values: list[float], counts: list[int], copies: float) -> float:
    """A statistic of all shards together; NaN if it does not follow from theirs."""
    if op == "norm":
        return math.sqrt(sum(value * value for value in values) / copies)
    if op in ("l1", "nans", "infs"):
        return sum(values) / copies
    # An empty shard has none of the others.
    held = [(value, count) for value, count in zip(values, counts) if count]
    if op in ("mean", "zeros") and held:
        return sum(value * count for value, count in held) / sum(counts)
    if op in ("min", "max", "absmax") and not any(math.isnan(value) for value, _ in held):
        return (min if op == "min" else max)((value for value, _ in held), default=math.nan)
    return math.nan


def shape_of(text: str) -> list[int] | None:
    """The lengths in a text such as ``[2, 8]`` or ``(2, 8)``; ``None`` if it is no shape."""
    try:
        lengths = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    is_shape = isinstance(lengths, (list, tuple)) and all(isinstance(each, int) for each in lengths)
    return list(lengths) if is_shape else None
