"""Rows of the shards of one parameter, on several ranks, as one row of the whole."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
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
    known = {*_KEY, "rank", "shape", "dtype", _PLACEMENT}
    joined: dict[str, list[Any]] = {name: [] for name in columns}
    for rows in order:
        whole = _shape_of_whole(columns[_PLACEMENT][rows[0]]) if len(rows) > 1 else None
        counts = [math.prod(_shape(columns["shape"][row])) for row in rows]
        copies = sum(counts) / (math.prod(whole or ()) or math.inf)
        if whole is None or not copies or not copies.is_integer():
            for row in rows:
                for name, column in columns.items():
                    joined[name].append(column[row])
            continue
        for name, column in columns.items():
            values = [column[row] for row in rows]
            if name == "shape":
                joined[name].append(str(whole))
            elif name == _PLACEMENT:
                joined[name].append(f"joined from {len(rows)} ranks")
            elif name == "rank":
                joined[name].append(min(values))
            elif name in known:
                joined[name].append(values[0])
            else:
                joined[name].append(_RULES.get(name, _unknown)(values, counts, copies))
    return joined


def _norm(values: Sequence[float], counts: Sequence[int], copies: float) -> float:
    return math.sqrt(sum(value * value for value in values) / copies)


def _sum(values: Sequence[float], counts: Sequence[int], copies: float) -> float:
    return sum(values) / copies


def _mean(values: Sequence[float], counts: Sequence[int], copies: float) -> float:
    held = [(value, count) for value, count in zip(values, counts) if count]
    return sum(value * count for value, count in held) / sum(counts) if held else math.nan


def _least(values: Sequence[float], counts: Sequence[int], copies: float) -> float:
    return _extreme(values, counts, min)


def _largest(values: Sequence[float], counts: Sequence[int], copies: float) -> float:
    return _extreme(values, counts, max)


def _extreme(values: Sequence[float], counts: Sequence[int], of: Callable[[list[float]], float]) -> float:
    # An empty shard has none.
    held = [value for value, count in zip(values, counts) if count]
    return math.nan if not held or any(map(math.isnan, held)) else of(held)


def _unknown(values: Sequence[float], counts: Sequence[int], copies: float) -> float:
    return math.nan


_RULES: dict[str, Callable[[Sequence[float], Sequence[int], float], float]] = {
    "norm": _norm, "l1": _sum, "nans": _sum, "infs": _sum, "mean": _mean, "zeros": _mean,
    "min": _least, "max": _largest, "absmax": _largest,
}  # fmt: skip


def _shape_of_whole(placement: str) -> list[int] | None:
    """``[8, 4]`` of ``S(0) of [8, 4]``."""
    return _shape(placement.rpartition(" of ")[2]) or None


def _shape(text: str) -> list[int]:
    try:
        lengths = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [int(each) for each in lengths] if isinstance(lengths, (list, tuple)) else []
