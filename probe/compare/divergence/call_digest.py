"""A digest of one call. It is enough for most calls: they differ by no more than the calls before them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Optional

import msgspec

from probe.common.align.row import Row
from probe.common.dump.reading.items import Shape
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.numerics.error_bounds import by_differences, extent, is_same, relative_difference
from probe.common.numerics.formats import unit_roundoff
from probe.compare.result import Mode


class CallDigest(msgspec.Struct, gc=False):
    """The facts on a call that the search asks for before it looks at single items."""

    types: tuple[Optional[str], ...]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The types of its items that have a match; where the sides have two, the one that rounds less."""
    differs: bool = False
    """True if the dumps say anything else of an item."""
    comparable: bool = True
    """True if all items that differ are tensors of the same type and shape on both sides; if not, see the rows."""
    difference: float = 0.0
    """The largest relative difference of an item."""
    output_difference: float = 0.0
    """The largest relative difference of an output."""
    outputs: tuple[int, ...] = ()
    """The `fingerprint` of each output that differs."""
    shapes: tuple[Optional[Shape], ...] = ()  # noqa: UP045
    """The shapes of these outputs."""
    balances: tuple[float, ...] = ()
    """The `balance` of each of these outputs on the golden side."""
    gradient_on_one_side: bool = False
    """True if an item takes a gradient on one side only."""


def digest(rows: Iterable[Row], mode: Mode) -> CallDigest:
    """The digest of the call that has these rows."""
    types: dict[Optional[str], None] = {}  # noqa: UP045
    differs = False
    largest = largest_output = 0.0
    comparable, one_sided = True, False
    outputs: list[int] = []
    shapes: list[Shape | None] = []
    balances: list[float] = []
    for row in rows:
        target, golden = row.target, row.golden
        if target is None or golden is None:
            differs, comparable = True, False
            continue
        if target.dtype != golden.dtype:
            types[min(target.dtype, golden.dtype, key=unit_roundoff)] = None
            differs, comparable = True, False
            continue
        types[target.dtype] = None
        if target.requires_grad is not golden.requires_grad and gradient_on_one_side(target, golden):
            one_sided = True
        if not comparable or (target is golden and mode is not Mode.TENSOR):
            continue
        difference = _by_metrics(row) if mode is Mode.STATISTICS else None
        if difference is None:
            same = target.shape == golden.shape and is_same(target, golden)
            if same and not row.relative_difference and not _measured(row, mode):
                continue
            difference = row_difference(row, mode) if target.value is golden.value is None else 0.0
        differs = True
        if target.shape != golden.shape or target.value is not None:
            comparable = False
            continue
        if difference > largest:
            largest = difference
        if target.state != INPUT and target.state != PARAMETERS:
            if difference > largest_output:
                largest_output = difference
            if difference:
                outputs.append(fingerprint(target, golden))
                shapes.append(golden.shape)
                balances.append(balance(golden))
    of_outputs = tuple(outputs), tuple(shapes), tuple(balances)
    return CallDigest(_shared(tuple(types)), differs, comparable, largest, largest_output, *of_outputs, one_sided)


_known_types: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def _shared(types: tuple[Any, ...]) -> tuple[Any, ...]:
    return _known_types.setdefault(types, types)


def gradient_on_one_side(target: Item, golden: Item) -> bool:
    """True if a tensor takes a gradient on one side only, as far as both dumps say so."""
    return target.requires_grad is not golden.requires_grad and None not in (
        target.requires_grad, golden.requires_grad
    )  # fmt: skip


def balance(item: Item) -> float:
    """The share of a tensor's extremes on one side of zero, from -1 to 1; a positive factor does not change it.

    NaN where the statistics do not tell.
    """
    largest, smallest = item.max, item.min
    if not (type(largest) is type(smallest) is float):
        return math.nan
    size = abs(largest) + abs(smallest)
    return (largest + smallest) / size if size else math.nan


def fingerprint(target: Item, golden: Item) -> int:
    """A number for what the dumps say of an output, by which it is recognised as the input of a later call.

    It has 61 bits, so that no two of a million outputs share one by chance. What was padded on one side only has the
    same extremes and norm.
    """
    same_size = target.shape == golden.shape or extent(target.shape).elements == extent(golden.shape).elements
    return hash(
        (target.max, target.min, target.norm, target.md5, golden.max, golden.min, golden.norm, golden.md5, same_size)
    )  # fmt: skip


def is_input(row: Row) -> bool:
    """True if the item goes into the call."""
    item = row.target or row.golden
    return item is not None and (item.state == INPUT or item.state == PARAMETERS)


def _by_metrics(row: Row) -> float | None:
    """The relative difference, where four differences of numbers give it, as they do of nearly all that differ."""
    target, golden, metrics = row.target, row.golden, row.metrics
    if target is None or golden is None or not metrics:
        return None
    # What is the same, and what is not finite, has no differences.
    of_max, of_min, of_mean, of_norm = metrics[:4]
    if not (type(of_max) is type(of_min) is type(of_mean) is type(of_norm) is float and of_norm):
        return None
    if not (
        type(target.max) is type(target.min) is type(target.mean) is type(target.norm) is float
        and type(golden.max) is type(golden.min) is type(golden.mean) is type(golden.norm) is float
        and target.value is golden.value is None and unit_roundoff(golden.dtype)
    ):  # fmt: skip
        return None
    row.relative_difference = by_differences(target, golden, of_max, of_min, of_mean, of_norm)
    return row.relative_difference


def row_difference(row: Row, mode: Mode) -> float:
    """The relative difference of the two tensors of a row; the row keeps it, as it is asked for again."""
    if row.relative_difference is None:
        assert row.target is not None and row.golden is not None
        row.relative_difference = relative_difference(row.target, row.golden, _measured(row, mode))
    return row.relative_difference


def _measured(row: Row, mode: Mode) -> float | None:
    """The norm of the difference relative to that of the larger tensor, where their values were compared."""
    if mode is not Mode.TENSOR or row.golden is None or not row.metrics:
        return None
    euclidean = row.metrics[1]
    norms = [item.norm for item in (row.target, row.golden) if item is not None and type(item.norm) is float]
    norm = max(filter(math.isfinite, norms), default=0.0)
    return euclidean / norm if type(euclidean) is float and norm else None
