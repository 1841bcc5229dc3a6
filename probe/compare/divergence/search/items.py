"""Questions on one item, or on one call, that need no more than it."""

from __future__ import annotations

from probe.common.align.row import Row
from probe.common.dump.naming import ParsedName, function_name, parse, record_name
from probe.common.numerics.formats import unit_roundoff
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.result import Unexplained


def in_direction(parsed: ParsedName, direction: str) -> str:
    """The record of the same call in another direction."""
    return record_name(ParsedName(parsed.base, parsed.number, direction, parsed.is_module))


def last_word(record: str) -> str:
    """The name of a function, or the class of a module."""
    parsed = parse(record)
    return "" if parsed is None else parsed.base.rpartition(".")[2]


def rounds(row: Row) -> bool:
    """True if an item has a type that rounds."""
    target, golden = row.target, row.golden
    return bool(
        (golden is not None and unit_roundoff(golden.dtype)) or (target is not None and unit_roundoff(target.dtype))
    )


def is_of_one_shape(row: Row) -> bool:
    """True if an item has the same shape on both sides, or is on one alone."""
    return row.target is None or row.golden is None or row.target.shape == row.golden.shape


def overwrites(call: AlignedCall, row: Row) -> bool:
    """True if the call writes over this input, whose values before do not matter."""
    # What is written over may be whatever was in memory.
    is_overwriting = has(function_name(call.record or ""), Trait.OVERWRITES, Trait.OVERWRITES_A_PART)
    return is_overwriting and differences.short_name(row) == "input.0"


def is_on_input(call: AlignedCall, suspect: Unexplained) -> bool:
    """True if an input of the call shows what is suspect."""
    return any(is_input(row) and suspect.item == differences.item_name(row) for row in call.rows)
