"""The findings of a walk in words: the extent to which a value is apart, and what was looked for."""

from __future__ import annotations

import math

from probe.common.align.row import Row
from probe.common.numerics.error_bounds import ALTOGETHER
from probe.common.numerics.formats import is_boolean
from probe.compare.sentences import (
    FROM_INPUTS,
    NOT_FROM_INPUTS,
    NOT_RECORDED,
    NOTHING,
    Sentence,
    beyond_inputs,
    beyond_peers,
    beyond_recorded,
    not_finite,
)
from probe.compare.verdict.dataflow import Source
from probe.compare.verdict.facts import Call, is_parameter
from probe.compare.verdict.findings import Excused, Finding, Kind
from probe.compare.verdict.kinds import own_name
from probe.compare.verdict.two_runs import path_of

NONFINITE_ON_ONE_SIDE = "a NaN or an infinity on one side only"


def size(number: float) -> str:
    """A distance in words; ``all`` of what has no rounding."""
    if number >= ALTOGETHER:
        return "infinity" if math.isinf(number) else "all"
    return f"{number:.1e}" if number else "0"


def of_finding(found: Finding, record: str = "", source: Source | None = None) -> Sentence:
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
        return not_finite(name, nonfinite(row), origin, f" where it calls {record}" if record else "")
    if found.kind is Kind.LIKE:
        return beyond_peers(name, apart, allowed, found.others)
    if found.kind is Kind.PARAMETER:
        return beyond_recorded(name, apart)
    if found.kind in (Kind.INPUT, Kind.DATA):
        return beyond_recorded(name, apart, allowed, record)
    if found.distance <= found.allowed:
        text = f"{name} has a relative error of {apart}, of which its inputs and rounding explain {allowed}"
        return Sentence(f"{text}; what is so far apart cannot be judged")
    return beyond_inputs(name, apart, size(found.given), allowed)


def cause_of_kind(found: Finding) -> Sentence:
    """The cause that the kind of a finding is: other data, other random numbers."""
    if found.kind is Kind.DATA or (found.kind is Kind.INPUT and found.distance == ALTOGETHER):
        target = found.row.target
        if found.distance < ALTOGETHER:
            return Sentence("the inputs differ")
        what = "masks" if target is not None and is_boolean(target.dtype or "") else "token ids, positions or labels"
        return Sentence(f"the inputs differ: other {what}")
    return Sentence("other random numbers") if found.kind is Kind.RANDOM else NOTHING


def of_random(found: Finding) -> Sentence:
    """Other random numbers, behind which no value can be held against another."""
    return Sentence(
        f"{own_name(found.row)} holds other random numbers; seed_all() gives both runs the same ones, and rm_dropout "
        "none"
    )


def of_excused(found: Excused) -> str:
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
