"""Differences of an item that are no matter of numbers: a dtype, a shape, an item on one side only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.common.align.conventions import PARAMETER_NAMES
from probe.common.align.row import Row
from probe.common.dump.reading.items import shape_text
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.numerics.error_bounds import extent
from probe.common.numerics.formats import is_integer, plain_name
from probe.common.operations.signatures import argument_name
from probe.compare.sentences import THERE, Sentence, on_one_side, other_dtype, other_shape
from probe.compare.verdict.facts import Call, goes_in, is_parameter
from probe.compare.verdict.settings import Design
from probe.compare.verdict.two_runs import TwoRuns, path_of

_KEPT = frozenset(("running_mean", "running_var", "num_batches_tracked"))


def own_name(row: Row) -> str:
    """The name of an item in its record: ``input.0``."""
    item = row.target or row.golden
    record = row.record if row.target is not None else row.golden_record or row.record
    return "" if item is None else item.name[len(record) + 1 :]


def has_tensor(item: Item | None) -> bool:
    """True if there is a tensor; ``None`` is an argument that was not given, and a gradient that was not asked for."""
    return item is not None and item.is_tensor


def kinds_of(runs: TwoRuns, call: Call, design: Design, going_in: bool = True) -> Iterator[tuple[Row, Sentence]]:
    """The items of a call that differ in kind.

    Args:
        runs: both runs.
        call: the call.
        design: dtypes that are meant to be other ones.
        going_in: true for inputs and parameters, false for outputs.
    """
    rows = [row for row in (call.inputs if going_in else call.outputs) if _is_of_other_kind(row)]
    for row in rows:
        found = _other_type(runs, row, design)
        if found:
            yield row, found
    if not rows or not call.is_of_both:
        return
    alone: tuple[dict[str, Row], dict[str, Row]] = {}, {}
    for row in rows:
        there = has_tensor(row.target), has_tensor(row.golden)
        is_plain = any(item is not None and item.value is not None for item in (row.target, row.golden))
        if there[0] != there[1] and not is_plain:
            side = int(there[1])
            alone[side][_known_name(call, row, side)] = row
    for side in (0, 1):
        for name, row in alone[side].items():
            if name in alone[1 - side] or not _may_differ(runs, call, row, len(alone[0]) == len(alone[1])):
                continue
            yield row, _on_one_side(call, row, name, side)


def _is_of_other_kind(row: Row) -> bool:
    target, golden = row.target, row.golden
    if target is None or golden is None or target.dtype != golden.dtype or target.shape != golden.shape:
        return True
    return (target.value is None) != (golden.value is None)


def _other_type(runs: TwoRuns, row: Row, design: Design) -> Sentence | None:
    target, golden = row.target, row.golden
    if target is None or golden is None or not target.is_tensor or not golden.is_tensor:
        return None
    types = plain_name(target.dtype or ""), plain_name(golden.dtype or "")
    is_width = runs.across_frameworks and all(map(is_integer, types))
    if types[0] != types[1] and types not in design and not is_width:
        return other_dtype(own_name(row), *types)
    if target.shape != golden.shape and runs.same_names:
        return other_shape(own_name(row), _shape(target), _shape(golden))
    if extent(target.shape).elements != extent(golden.shape).elements and not runs.across_frameworks:
        return other_shape(own_name(row), _shape(target), _shape(golden))
    return None


def _shape(item: Item) -> str:
    return "none" if item.shape is None else shape_text(item.shape)


def _known_name(call: Call, row: Row, side: int) -> str:
    """The argument's own name; the parameter's in the words of PyTorch."""
    item = (row.target, row.golden)[side]
    record = (call.record, call.golden_record)[side] or ""
    name = "" if item is None else item.name[len(record) + 1 :]
    if name.startswith(f"{PARAMETERS}."):
        own = name[len(PARAMETERS) + 1 :]
        return f"{PARAMETERS}.{PARAMETER_NAMES.get(own, own)}"
    return name if call.is_module or not name.startswith(f"{INPUT}.") else argument_name(record, name)


def _may_differ(runs: TwoRuns, call: Call, row: Row, as_many: bool) -> bool:
    """True if an item on one side only tells something; two programs pass other things to their modules."""
    if not goes_in(row):
        return False
    if is_parameter(row):
        return own_name(row).rpartition(".")[2] not in _KEPT
    # By position on one side and by keyword on the other; the names of a module's arguments are not known.
    return runs.same_names and not (call.is_module and as_many)


def _on_one_side(call: Call, row: Row, name: str, side: int) -> Sentence:
    where = ("target", "golden run")[side]
    if is_parameter(row):
        parameter = name[len(PARAMETERS) + 1 :]
        module = path_of(call.parsed) or call.function
        lacks = ("golden run", "target")[side]
        text = f"{name} is {THERE} in the {where} only"
        return Sentence(text, f"{module} has no {parameter} in the {lacks}")
    return on_one_side(name, THERE, where)
