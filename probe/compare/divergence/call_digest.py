"""What is seen of a call at a glance. It is enough for most: they differ by no more than calls before them did."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Optional

import msgspec

from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.match.row import Row
from probe.common.metrics.error_bounds import by_differences, distance, is_same, unit_roundoff
from probe.compare.result import Mode


class Glance(msgspec.Struct, gc=False, array_like=True):
    """A call, as far as the walk from call to call asks for it before it looks at items."""

    types: tuple[Optional[str], ...]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """Of its items that have a match; where the sides have two, the one that rounds less."""
    differs: bool = False
    """Whether the dumps say anything else of an item."""
    usual: bool = True
    """Whether all items that differ are tensors of the same type and shape on both sides; if not, see the rows."""
    apart: float = 0.0
    """The largest distance of an item."""
    outputs_apart: float = 0.0
    """The largest of an output."""
    outputs: tuple[int, ...] = ()
    """`fingerprint` of each output that is apart."""
    shapes: tuple[Optional[str], ...] = ()  # noqa: UP045
    """Theirs."""
    balances: tuple[float, ...] = ()
    """`balance_of` each, of the golden side."""
    gradients_part: bool = False
    """Of any item."""


def glance(rows: Iterable[Row], mode: Mode) -> Glance:
    """Look at the call that has these rows."""
    types: dict[Optional[str], None] = {}  # noqa: UP045
    differs = False
    apart = outputs_apart = 0.0
    usual, one_sided = True, False
    outputs: list[int] = []
    shapes: list[str | None] = []
    balances: list[float] = []
    for row in rows:
        n, b = row.target, row.golden
        if n is None or b is None:
            differs, usual = True, False
            continue
        if n.dtype != b.dtype:
            types[min(n.dtype, b.dtype, key=unit_roundoff)] = None
            differs, usual = True, False
            continue
        types[n.dtype] = None
        if n.requires_grad is not b.requires_grad and gradients_part(n, b):
            one_sided = True
        if not usual or (n is b and mode is not Mode.TENSOR):
            continue
        size = _by_metrics(row) if mode is Mode.STATISTICS else None
        if size is None:
            if n.shape == b.shape and is_same(n, b) and not row.apart and not _measured(row, mode):
                continue
            size = row_distance(row, mode) if n.value is b.value is None else 0.0
        differs = True
        if n.shape != b.shape or n.value is not None:
            usual = False
            continue
        if size > apart:
            apart = size
        if n.state != INPUT and n.state != PARAMETERS:
            if size > outputs_apart:
                outputs_apart = size
            if size:
                outputs.append(fingerprint(n, b))
                shapes.append(b.shape)
                balances.append(balance_of(b))
    of_outputs = tuple(outputs), tuple(shapes), tuple(balances)
    return Glance(_shared(tuple(types)), differs, usual, apart, outputs_apart, *of_outputs, one_sided)


_types_seen: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def _shared(types: tuple[Any, ...]) -> tuple[Any, ...]:
    return _types_seen.setdefault(types, types)


def gradients_part(n: Item, b: Item) -> bool:
    """Whether a tensor takes a gradient on one side only, as far as both dumps say so."""
    return n.requires_grad is not b.requires_grad and None not in (n.requires_grad, b.requires_grad)


def balance_of(item: Item) -> float:
    """How far the extremes of a tensor are on one side of zero, from -1 to 1: the same of any positive multiple of it.

    NaN where the statistics do not tell.
    """
    largest, smallest = item.max, item.min
    if not (type(largest) is type(smallest) is float):
        return math.nan
    size = abs(largest) + abs(smallest)
    return (largest + smallest) / size if size else math.nan


def fingerprint(n: Item, b: Item) -> int:
    """A number for what the dumps say of an output, by which it is known where it goes in.

    It has 61 bits, so that no two of a million outputs share one by chance.
    """
    return hash((n.max, n.min, n.norm, n.md5, b.max, b.min, b.norm, b.md5))


def is_input(row: Row) -> bool:
    """Whether it goes into the call."""
    item = row.target or row.golden
    return item is not None and (item.state == INPUT or item.state == PARAMETERS)


def _by_metrics(row: Row) -> float | None:
    """The distance, where four differences of numbers tell it, as they do of nearly all that is apart."""
    n, b, metrics = row.target, row.golden, row.metrics
    if n is None or b is None or not metrics:
        return None
    # What is the same, and what is not finite, has no differences.
    of_max, of_min, of_mean, of_norm = metrics[:4]
    if not (type(of_max) is type(of_min) is type(of_mean) is type(of_norm) is float and of_norm):
        return None
    if not (
        type(n.max) is type(n.min) is type(n.mean) is type(n.norm) is float
        and type(b.max) is type(b.min) is type(b.mean) is type(b.norm) is float
        and n.value is b.value is None and unit_roundoff(b.dtype)
    ):  # fmt: skip
        return None
    row.apart = by_differences(n, b, of_max, of_min, of_mean, of_norm)
    return row.apart


def row_distance(row: Row, mode: Mode) -> float:
    """How far the two tensors of a row are apart; the row keeps it, as it is asked for again."""
    if row.apart is None:
        assert row.target is not None and row.golden is not None
        row.apart = distance(row.target, row.golden, _measured(row, mode))
    return row.apart


def _measured(row: Row, mode: Mode) -> float | None:
    """The norm of the difference relative to that of the larger tensor, where their values were compared."""
    if mode is not Mode.TENSOR or row.golden is None or not row.metrics:
        return None
    apart = row.metrics[1]
    norms = [item.norm for item in (row.target, row.golden) if item is not None and type(item.norm) is float]
    norm = max(filter(math.isfinite, norms), default=0.0)
    return apart / norm if type(apart) is float and norm else None
