"""Findings of the walk over two runs: values that nothing explains, and values that are apart and explained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, Optional

import msgspec

from probe.common.align.calls import Row
from probe.common.align.name_mapping import PARAMETER_NAMES
from probe.common.dump.reading.items import shape_text
from probe.common.dump.reading.records import INPUT, PARAMETERS, Item
from probe.common.numerics.error_bounds import ALTOGETHER, extent
from probe.common.numerics.formats import is_boolean, is_integer, plain_name
from probe.common.operations.lookup import argument_name
from probe.compare.judgement import (
    FROM_INPUTS,
    NOT_FROM_INPUTS,
    NOT_RECORDED,
    NOTHING,
    OTHER_RANDOM_NUMBERS,
    THERE,
    Sentence,
    beyond_inputs,
    beyond_peers,
    beyond_recorded,
    not_finite,
    on_one_side,
    other_dtype,
    other_shape,
)
from probe.compare.verdict.facts import Call, goes_in, is_parameter
from probe.compare.verdict.settings import Design
from probe.compare.verdict.two_runs import Source, TwoRuns, path_of


class Kind(Enum):
    """The sign of a divergence."""

    OUTPUT = "output"
    """A result is further apart than its inputs explain."""
    LIKE = "like"
    """A result is further apart than that of similar calls."""
    INPUT = "input"
    """An input is further apart than anything before it that is recorded."""
    DATA = "data"
    """Data differ."""
    PARAMETER = "parameter"
    """A parameter differs."""
    NONFINITE = "nonfinite"
    """One side has a NaN or an infinity."""
    WHOLE = "whole"
    """Whole numbers differ."""
    CHOICE = "choice"
    """A call chooses otherwise, though the values are too near for that."""
    RANDOM = "random"
    """Random numbers differ."""
    REDRAWN = "redrawn"
    """The forward has the same random numbers in both runs, and its backward has not."""
    PARTS = "parts"
    """One side has a part of a batch, and the other side all of it."""
    GRADIENT = "gradient"
    """One side has no gradient."""


class Finding(NamedTuple):
    """A value that nothing explains."""

    call: Call
    row: Row
    kind: Kind
    distance: float
    given: float
    """The largest distance of what it is made from."""
    allowed: float
    """The distance that is explained."""
    others: int = 0
    """The calls like it that tell what is usual, where they do; of choices the number of those that differ."""


class Excused(msgspec.Struct, gc=False):
    """A value that is apart and explained."""

    call: Call
    row: Row
    distance: float
    given: float
    allowed: float
    """The distance that is explained, which is the smallest that would have been seen."""


class Walked(msgspec.Struct):
    """All that was found on the way."""

    findings: list[Finding] = msgspec.field(default_factory=list)
    """In the order of the calls; the first is where the runs diverge."""
    excused: list[Excused] = msgspec.field(default_factory=list)
    undecided: list[Finding] = msgspec.field(default_factory=list)
    """Random numbers that differ, behind which nobody can tell."""
    hidden: list[Finding] = msgspec.field(default_factory=list)
    """Inputs that nothing explains and whose effect rounding may hide."""
    in_parts: Optional[Finding] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The first data of which one run takes a part; of calls, no value but a parameter is judged then."""


# --- kinds


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
    if call.is_alike:
        return
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


# --- words


LEAST_RATIO = 2.0
"""Ratio of norms that is printed: below it the relative error is below a half, and shows it itself."""
NONFINITE_ON_ONE_SIDE = "a NaN or an infinity on one side only"


def size(number: float) -> str:
    """A distance in words; ``all`` of what has no rounding."""
    if number >= ALTOGETHER:
        return "infinity" if math.isinf(number) else "all"
    return f"{number:.1e}" if number else "0"


def finding_sentence(found: Finding, record: str = "", source: Source | None = None) -> Sentence:
    """The extent to which a value is apart, and what is explained of it.

    Args:
        found: the finding.
        record: the record of the call that has the value, where another one is named for it.
        source: the origin of a parameter or buffer that a function is given.
    """
    row, name = found.row, own_name(found.row)
    apart, allowed = size(found.distance), size(found.allowed)
    if source is not None:
        name = f"{source.origin.value} {source.name}"
    elif is_parameter(row):
        name = f"parameter {parameter_name(found.call, row)}"
    if found.kind is Kind.PARTS:
        shapes = [list(item.shape or ()) for item in (row.target, row.golden) if item is not None]
        return Sentence(f"{name} has shape {shapes[0]} (golden: {shapes[1]}): a part of a batch is not the whole")
    if found.kind is Kind.GRADIENT:
        item = found.row.target
        item, has = (item, "target") if item is not None and item.is_tensor else (found.row.golden, "golden run")
        norm = "" if item is None or type(item.norm) is not float else f"; its norm there is {item.norm:.1e}"
        return Sentence(f"the gradient {name} is there in the {has} only{norm}")
    if found.kind is Kind.NONFINITE or math.isinf(found.distance):
        origin = NOT_RECORDED if found.kind is Kind.INPUT else NOT_FROM_INPUTS
        origin = FROM_INPUTS if math.isinf(found.given) else origin
        return not_finite(name, nonfinite(row), origin, record)
    if found.kind is Kind.CHOICE and not found.others:
        of = f" of {record}" if record else ""
        return Sentence(f"{name}{of} has other choices: one run has changed them after they were made")
    if found.kind is Kind.CHOICE:
        text = f"{name} has {found.others} other choice{'' if found.others == 1 else 's'} than the golden run"
        if not found.given:
            return Sentence(f"{text}; its inputs are identical")
        return Sentence(f"{text}; they need inputs with a relative error of {apart}; found {allowed}")
    ratio = ratio_of_norms(row)
    if found.kind is Kind.LIKE:
        return beyond_peers(name, apart, allowed, found.others).followed_by(ratio)
    if found.kind is Kind.PARAMETER:
        return beyond_recorded(name, apart).followed_by(ratio)
    if found.kind in (Kind.INPUT, Kind.DATA):
        return beyond_recorded(name, apart, allowed, record).followed_by(ratio)
    if found.distance <= found.allowed:
        text = f"{name} has a relative error of {apart}, of which its inputs and rounding explain {allowed}"
        return Sentence(f"{text}; values so far apart cannot be judged")
    return beyond_inputs(name, apart, size(found.given), allowed, _other_form(found.call)).followed_by(ratio)


def _other_form(call: Call) -> str:
    """``shape`` or ``dtype``, if an input has another one than in the golden run; it is not the same tensor then."""
    pairs = [(row.target, row.golden) for row in call.inputs]
    both = [(one, other) for one, other in pairs if one is not None and other is not None and one.is_tensor]
    if any(extent(one.shape).elements != extent(other.shape).elements for one, other in both):
        return "shape"
    types = [(plain_name(one.dtype or ""), plain_name(other.dtype or "")) for one, other in both if other.is_tensor]
    # Two frameworks have whole numbers of other widths.
    return "dtype" if any(mine != theirs and not is_integer(mine) for mine, theirs in types) else ""


def ratio_of_norms(row: Row) -> str:
    """The ratio of both norms in words, if one is twice the other: a relative error has the larger norm below it.

    A tensor that is 1,024 times too large has a relative error of 1.0, as one of other numbers has.
    """
    if row.target is None or row.golden is None:
        return ""
    target, golden = row.target.norm, row.golden.norm
    if type(target) is not float or type(golden) is not float or not (0 < target < math.inf and 0 < golden < math.inf):
        return ""
    times = max(target, golden) / min(target, golden)
    if times < LEAST_RATIO or times == math.inf:
        return ""
    return f"its norm is {f'{times:,.4g} times' if target > golden else f'1/{times:,.4g} of'} that of the golden run"


def cause_of_kind(found: Finding) -> Sentence:
    """The cause that the kind of a finding is: other data, other random numbers."""
    if found.kind is Kind.DATA or (found.kind is Kind.INPUT and found.distance == ALTOGETHER):
        target = found.row.target
        if found.distance < ALTOGETHER:
            return Sentence("the inputs differ")
        what = "masks" if target is not None and is_boolean(target.dtype or "") else "token ids, positions or labels"
        return Sentence(f"the inputs differ: other {what}")
    if found.kind is Kind.REDRAWN:
        return Sentence(
            "the backward in one run has other random numbers than its forward: activation checkpointing that does not "
            "restore the generator (preserve_rng_state)"
        )
    return Sentence(OTHER_RANDOM_NUMBERS) if found.kind is Kind.RANDOM else NOTHING


def random_sentence(found: Finding) -> Sentence:
    """Other random numbers, behind which no value can be held against another."""
    return Sentence(f"{own_name(found.row)} holds {OTHER_RANDOM_NUMBERS}")


def excused_sentence(found: Excused) -> str:
    """A value that is apart by no more than is explained."""
    sizes = size(found.distance), size(found.given), size(found.allowed)
    return beyond_inputs(own_name(found.row), *sizes).shown


def nonfinite(row: Row) -> str:
    """The kind of value that is not finite in a tensor, and its side."""
    sides = (("target", row.target), ("golden run", row.golden))
    found = [(side, item) for side, item in sides if item is not None and (item.has_nan or item.has_inf)]
    if len(found) != 1:
        # The files of the tensors tell more than their statistics do.
        return NONFINITE_ON_ONE_SIDE
    ((side, item),) = found
    return f"{'a NaN' if item.has_nan else 'an infinity'} in the {side} only"


def parameter_name(call: Call, row: Row) -> str:
    """The name of a parameter in the model of the target."""
    name = own_name(row).partition(".")[2]
    return ".".join(filter(None, (path_of(call.parsed), name)))
