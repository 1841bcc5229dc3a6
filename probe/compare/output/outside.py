"""The differences outside of the model: environments of both runs, and the data of their first calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from probe.common.align.row import Row
from probe.common.dump import sketch_file
from probe.common.dump.layout import step_and_rank
from probe.common.dump.naming import is_forward, is_module
from probe.common.dump.reading.items import INPUT, Item, shape_text
from probe.common.environment import environment_file as environment_files
from probe.common.environment.differences import DATA, OPTIMIZER, SEED, OutsideDifference, differences
from probe.common.numerics.error_bounds import is_same, relative_difference
from probe.common.numerics.formats import unit_roundoff
from probe.compare.result import ComparisonResult

_LOOKED_AT = 1000
"""Rows at the beginning among which the batch is looked for."""
BATCH_SHAPE = "data.first_batch.shape"
_ROUNDED = 1e-5
"""Relative difference of statistics that sums of float32 in another order may have: 80 unit roundoffs, a guess."""
MOST_SHOWN = 5
"""Differences that the text of an answer has."""


def outside_of(result: ComparisonResult) -> list[OutsideDifference]:
    """Differences outside of the model, the most likely cause first; empty if one run has no environment file."""
    target, golden = map(environment_files.of_record_file, (result.target, result.golden))
    if target is None or golden is None:
        return []
    found = differences(target, golden)
    data = [] if result.debug else _data(result.rows)
    if step_and_rank(result.target)[0] == 0:
        # No update has had an effect yet.
        late = [each for each in found if each.kind == OPTIMIZER]
        found = [each for each in found if each.kind != OPTIMIZER] + late
    return _inserted(found, data)


def _inserted(found: list[OutsideDifference], data: list[OutsideDifference]) -> list[OutsideDifference]:
    """Data behind the seeds, which may decide its order."""
    seeds = [each for each in found if each.kind == SEED]
    return [*seeds, *data, *(each for each in found if each.kind != SEED)]


def _data(rows: Sequence[Row]) -> list[OutsideDifference]:
    """The batch, if it differs: the inputs of the first call that takes no gradient."""
    # A gradient takes no gradient either, and is no batch.
    forward = (row for row in islice(rows, _LOOKED_AT) if is_forward(row.record))
    batches = [row for row in forward if _is_batch(row.target) and _is_batch(row.golden)]
    # A module gets the batch as it is; functions before it may prepare it.
    first = next((row for row in batches if is_module(row.record)), batches[0] if batches else None)
    if first is None:
        return []
    found = []
    for row in batches:
        target, golden = row.target, row.golden
        if row.record != first.record or target is None or golden is None:
            continue
        if target.shape != golden.shape:
            shapes = shape_text(target.shape or ()), shape_text(golden.shape or ())
            text = f"first batch has shape {shapes[0]} (golden: {shapes[1]})"
            found.append(OutsideDifference(DATA, BATCH_SHAPE, text, *shapes))
        elif not _is_rounded(target, golden) and not is_same(target, golden):
            found.append(_difference(_how(target, golden), target, golden))
    # The arguments of one call are one batch.
    return found[:1]


def _is_rounded(target: Item, golden: Item) -> bool:
    """True if the batches may be the same one, rounded to two dtypes, or their statistics by two frameworks."""
    have_checksums = target.md5 is not None or golden.md5 is not None
    if target.dtype == golden.dtype:
        return not have_checksums and 0 < relative_difference(target, golden) <= _ROUNDED
    # One rounding moves no element by more than the unit roundoff. Checksums of two dtypes always differ.
    shorter = max(unit_roundoff(each.dtype) for each in (target, golden))
    return shorter > 0 and (have_checksums or relative_difference(target, golden) <= max(_ROUNDED, shorter))


def _how(target: Item, golden: Item) -> str:
    mine, theirs = ((item.max, item.min, item.mean, item.norm) for item in (target, golden))
    if mine == theirs and target.max is not None:
        may_be = "it may have the same elements in another order"
        # One element that is rounded otherwise changes no statistic.
        rounded = ", or differ by rounding" if unit_roundoff(target.dtype) else ""
        return f"first batch differs: its statistics agree, so {may_be}{rounded}"
    if target.dtype == golden.dtype and target.max is not None and relative_difference(target, golden) <= _ROUNDED:
        return "first batch differs by rounding, or has the same elements in another order: its statistics agree"
    return "first batch differs: other data, or another order of the data"


def _difference(text: str, target: Item, golden: Item) -> OutsideDifference:
    return OutsideDifference(DATA, "data.first_batch", text, target.md5 or target.norm, golden.md5 or golden.norm)


def _is_batch(item: Item | None) -> bool:
    """True of an input that takes no gradient, and of which nothing recorded says that it is no data."""
    if item is None or item.state != INPUT or not item.is_tensor or item.requires_grad:
        return False
    return item.made_by is None or item.made_by.startswith(sketch_file.DATA)


def lines(found: Sequence[OutsideDifference]) -> list[str]:
    """One line, or none if nothing differs."""
    if not found:
        return []
    texts = [each.text for each in found[:MOST_SHOWN]]
    more = f"; {len(found) - MOST_SHOWN} more (--json lists them)" if len(found) > MOST_SHOWN else ""
    return [f"  outside of the model: {'; '.join(texts)}{more}"]
