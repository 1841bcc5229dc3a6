"""Parameters that one side has as one and the other as several: taken apart until both have the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from probe.checkpoint.pairing.layouts import gate_parts, qkv_parts
from probe.checkpoint.pairing.pairs import Side
from probe.checkpoint.stored.tensors import Tensor, Transposed, element

_QKV = re.compile(r"^(?P<path>.*attention\.)qkv\.(?P<kind>.+)$")
_FC1 = re.compile(r"^(?P<path>.*(?:mlp|experts\.\d+|shared)\.)fc1\.(?P<kind>.+)$")
_STACK = re.compile(r"^(?P<path>.*experts\.)(?P<part>fc1|fc2|gate|up)\.(?P<kind>weight|bias)$")


class Split(NamedTuple):
    """A part of a parameter: which, and the ways to read it."""

    side: Side
    counterpart: Side | None
    """``None`` if the other side lacks this part alone."""
    readings: list[tuple[str, Tensor]]


def splits(
    fused: Mapping[str, Side], others: Mapping[str, Side], heads: tuple[int, int] | None
) -> Iterator[tuple[Side, list[Split]]]:
    """The parameters of one side whose parts the other has, and the parts.

    Args:
        fused: what is left of one side, by names in the scheme.
        others: what is left of the other.
    """
    for side in fused.values():
        found = list(_parts(side, others, heads))
        if any(split.counterpart is not None for split in found):
            yield side, found


def _parts(side: Side, others: Mapping[str, Side], heads: tuple[int, int] | None) -> Iterator[Split]:
    qkv, fc1, stack = _QKV.match(side.key), _FC1.match(side.key), _STACK.match(side.key)
    if qkv is not None:
        keys = {which: f"{qkv['path']}{which}.{qkv['kind']}" for which in "qkv"}
        if keys["q"] not in others or keys["k"] not in others:
            return
        sizes = others[keys["q"]].tensor.row_count, others[keys["k"]].tensor.row_count
        for which, key in keys.items():
            readings = list(qkv_parts(side.tensor, which, sizes, heads)) if key in others else []
            yield _split(side, key, others.get(key), readings, which)
    elif fc1 is not None:
        keys = {which: f"{fc1['path']}{which}.{fc1['kind']}" for which in ("gate", "up")}
        only = others.get(keys["up"])
        if only is not None and keys["gate"] not in others and only.tensor.shape == side.tensor.shape:
            yield Split(side, only, [("", side.tensor)])
        elif only is not None or keys["gate"] in others:
            for which, key in keys.items():
                readings = list(gate_parts(side.tensor, which)) if key in others else []
                yield _split(side, key, others.get(key), readings, which)
    elif stack is not None and len(side.tensor.shape) > 1:
        for number in range(side.tensor.shape[0]):
            key = f"{stack['path']}{number}.{stack['part']}.{stack['kind']}"
            one = Side(side.name, key, element(side.tensor, number), f"expert {number} of {side.name}")
            if key in others:
                readings = [(f"expert {number} of the stack", one.tensor)]
                if len(one.tensor.shape) == 2:
                    readings.append((f"expert {number} of the stack, transposed", Transposed(one.tensor)))
                yield Split(one, others[key], readings)
                continue
            parts = list(_parts(one, others, heads))
            if parts:
                yield from _prefixed(parts, f"expert {number} of the stack")
            else:
                yield Split(one, None, [])


def _prefixed(parts: Iterable[Split], words: str) -> Iterator[Split]:
    for split in parts:
        yield split._replace(readings=[(f"{words}, {text}" if text else words, each) for text, each in split.readings])


def _split(side: Side, key: str, other: Side | None, readings: list[tuple[str, Tensor]], which: str) -> Split:
    return Split(Side(side.name, key, side.tensor, f"{which} of {side.name}"), other, readings)
