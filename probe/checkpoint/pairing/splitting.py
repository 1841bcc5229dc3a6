"""Parameters that one side has as one and the other as several: taken apart until both have the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from probe.checkpoint.pairing.layouts import gate_parts, plain_readings, qkv_parts, readings_of, rotary_orders
from probe.checkpoint.pairing.pairs import Reading, Side
from probe.checkpoint.stored.tensors import Slice, element

_QKV = re.compile(r"^(?P<path>.*attention\.)qkv\.(?P<kind>.+)$")
_FC1 = re.compile(r"^(?P<path>.*(?:mlp|experts\.\d+|shared)\.)fc1\.(?P<kind>.+)$")
_STACK = re.compile(r"^(?P<path>.*experts\.)(?P<part>fc1|fc2|gate|up)\.(?P<kind>weight|bias)$")


class Split(NamedTuple):
    """A part of a parameter: which, and the ways to read it."""

    side: Side
    counterpart: Side | None
    """``None`` if the other side lacks this part alone."""
    readings: list[Reading]
    group: str = ""


def splits(
    fused: Mapping[str, Side], others: Mapping[str, Side], heads: tuple[int, int] | None, of_first: bool
) -> Iterator[tuple[Side, list[Split]]]:
    """The parameters of one side whose parts the other has, and the parts.

    Args:
        fused: what is left of one side, by names in the scheme.
        others: what is left of the other.
        of_first: True if `fused` is the first side.
    """
    for side in fused.values():
        found = list(_parts(side, others, heads, of_first))
        if any(split.counterpart is not None for split in found):
            yield side, found


def _parts(side: Side, others: Mapping[str, Side], heads: tuple[int, int] | None, of_first: bool) -> Iterator[Split]:
    qkv, fc1, stack = _QKV.match(side.key), _FC1.match(side.key), _STACK.match(side.key)
    if qkv is not None:
        keys = {which: f"{qkv['path']}{which}.{qkv['kind']}" for which in "qkv"}
        if keys["q"] not in others or keys["k"] not in others:
            return
        sizes = others[keys["q"]].tensor.row_count, others[keys["k"]].tensor.row_count
        for which, key in keys.items():
            readings = readings_of(side.tensor, qkv_parts(which, sizes, heads)) if key in others else []
            if which != "v":
                readings += [
                    Reading(f"{words}, {rotated}", Slice(tensor, ranges), turned, f"{order}; {form}")
                    for words, tensor, turned, order in readings
                    for form, rotated, ranges in rotary_orders(heads, of_first)(tensor)
                ]
            yield _split(side, key, others.get(key), readings, which, "qkv")
    elif fc1 is not None:
        keys = {which: f"{fc1['path']}{which}.{fc1['kind']}" for which in ("gate", "up")}
        only = others.get(keys["up"])
        if only is not None and keys["gate"] not in others and only.tensor.shape == side.tensor.shape:
            yield Split(side, only, plain_readings(side.tensor))
        elif only is not None or keys["gate"] in others:
            for which, key in keys.items():
                readings = readings_of(side.tensor, gate_parts(which)) if key in others else []
                yield _split(side, key, others.get(key), readings, which, "gate_up")
    elif stack is not None and len(side.tensor.shape) > 1:
        for number in range(side.tensor.shape[0]):
            key = f"{stack['path']}{number}.{stack['part']}.{stack['kind']}"
            one = Side(side.name, key, element(side.tensor, number), f"expert {number} of {side.name}")
            words = f"expert {number} of the stack"
            if key in others:
                parts = [Split(one, others[key], plain_readings(one.tensor))]
            else:
                parts = list(_parts(one, others, heads, of_first)) or [Split(one, None, [])]
            for split in parts:
                readings = [each._replace(words=f"{words}, {each.words}".rstrip(", ")) for each in split.readings]
                yield split._replace(readings=readings, group=f"stack {split.group}")


def _split(side: Side, key: str, other: Side | None, readings: list[Reading], which: str, group: str) -> Split:
    return Split(Side(side.name, key, side.tensor, f"{which} of {side.name}"), other, readings, group)
