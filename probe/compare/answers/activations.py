"""Activations that one run alone computes, such as GELU by its tanh.

They differ by less than a short type shows, and agree in everything else. Programs call one function, or write it as
several, and the curve tells them apart: `erf` of GELU, `tanh` and `sigmoid` of its approximations. Where the same
configuration names another activation, calls of one side have no counterparts, and nothing else differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.common.dump.naming import function_name, is_forward, is_module, kind_name, parse
from probe.common.operations.function import Trait
from probe.common.operations.lookup import function, has
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.search.runs import Runs
from probe.compare.result import Difference

_CLASSES = {
    "gelu": "erf", "quickgelu": "sigmoid", "silu": "sigmoid", "newgelu": "tanh", "fastgelu": "tanh", "gelutanh": "tanh",
    "pytorchgelutanh": "tanh",
}  # fmt: skip
"""Classes of layers in PyTorch, Transformers, timm and open_clip by their curves, where no function is recorded."""
_SUFFIX = "activation"
_SIDES = "target", "golden run"


class _Curve(NamedTuple):
    """The first call of a side that computes a curve."""

    call: AlignedCall
    name: str


def other_activations(runs: Runs) -> Iterator[Difference]:
    """A difference for each curve that one run alone computes.

    Args:
        runs: the runs, of one program or two.
    """
    if runs.across_frameworks:
        return
    sides = _curves(runs, 0), _curves(runs, 1)
    if not all(sides) or any(_has_recurrence(runs, side) for side in (0, 1)):
        return  # A recurrent layer has curves inside.
    for side, (own, other) in enumerate((sides, sides[::-1])):
        for curve in own.keys() - other.keys():
            found = own[curve]
            names = found.call.record or "", found.call.golden_record or ""
            instead = sorted(other[name].name for name in other.keys() - own.keys())
            rest = f"; only the {_SIDES[1 - side]} has that of {instead[0]}" if instead else ""
            yield Difference(*names, "", f"only the {_SIDES[side]} has this activation, which is made of {curve}{rest}")


def _curves(runs: Runs, side: int) -> dict[str, _Curve]:
    """The curves that calls of a side compute inside of modules, or its layers where no call is recorded."""
    found: dict[str, _Curve] = {}
    tree = (runs.tree, runs.golden_tree)[side]
    for call in runs.made:
        record = (call.record, call.golden_record)[side]
        if record is None or not is_forward(record) or is_module(record) is not runs.modules_only:
            continue
        curve = _of_layer(record) if runs.modules_only else _of_function(call, record, side) if tree.get(record) else ""
        if curve and curve not in found:
            found[curve] = _Curve(call, record)
    return found


def _of_layer(record: str) -> str:
    return _CLASSES.get(kind_name(record).lower().removesuffix(_SUFFIX), "")


def _of_function(call: AlignedCall, record: str, side: int) -> str:
    known = function(function_name(record))
    if known.has(Trait.BENDS):
        return known.name
    curve = next((part for part in known.parts if has(part, Trait.BENDS)), "")
    items = ((row.target, row.golden)[side] for row in call.rows if is_input(row))
    is_by_tanh = known.name == "gelu" and any(item is not None and item.value == "tanh" for item in items)
    return "tanh" if is_by_tanh else curve


def _has_recurrence(runs: Runs, side: int) -> bool:
    for call in runs.made:
        parsed = parse((call.record, call.golden_record)[side] or "")
        name = "" if parsed is None else parsed.base.rpartition(".")[2]
        if has(name.lower() if parsed is not None and parsed.is_module else name, Trait.RECURRENT):
            return True
    return False
