"""Activations that one run alone computes, such as GELU by its tanh.

They differ by less than a short type shows, and agree in everything else. Programs call one function, or write it as
several, and the curve tells them apart: `erf` of GELU, `tanh` and `sigmoid` of its approximations. Where the same
configuration names another activation, calls of one side have no counterparts, and nothing else differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from probe.common.dump.naming import function_name, is_forward, is_module, kind_name, parse
from probe.common.environment.modules import ModuleSettings
from probe.common.numerics.error_bounds import relative_difference
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
"""Classes of layers in PyTorch, Transformers, timm and open_clip by their curves, where no function is recorded.

They are those of four libraries. The curve of any other class is not known, and nothing is told of it.
"""
_SUFFIX = "activation"
_APPROXIMATE = "approximate"
_SIDES = "target", "golden run"


class _Curve(NamedTuple):
    """The first call of a side that computes a curve."""

    call: AlignedCall
    name: str


def other_activations(runs: Runs) -> Iterator[Difference]:
    """A difference for each curve that one run alone computes.

    Args:
        runs: the runs, of one program or two, with PyTorch: in MindSpore a GELU is made of tanh.
    """
    if not runs.is_torch:
        return
    sides = _curves(runs, 0), _curves(runs, 1)
    if not all(sides) or any(_has_recurrence(runs, side) for side in (0, 1)):
        return  # A recurrent layer has curves inside.
    for side, (own, other) in enumerate((sides, sides[::-1])):
        instead = next((found.name for curve, found in other.items() if curve not in own), "")
        for curve, found in own.items():
            if curve in other:
                continue
            names = found.call.record or "", found.call.golden_record or ""
            rest = f"; {instead} of the {_SIDES[1 - side]} has another one" if instead else ""
            yield Difference(*names, "", f"only the {_SIDES[side]} computes {curve} for an activation{rest}")


def _curves(runs: Runs, side: int) -> dict[str, _Curve]:
    """The curves that calls of a side compute inside of modules, or its layers where no call is recorded.

    Calls of both sides that take and return the same are left out: whatever they are called, they do the same.
    """
    found: dict[str, _Curve] = {}
    tree = (runs.tree, runs.golden_tree)[side]
    for call in runs.made:
        record = (call.record, call.golden_record)[side]
        if record is None or not is_forward(record) or is_module(record) is not runs.modules_only:
            continue
        if runs.modules_only:
            curve = _of_layer(record, runs.settings[side])
        else:
            curve = _of_function(call, record, side) if tree.get(record) else ""
        if curve and curve not in found and not _is_equal(call):
            found[curve] = _Curve(call, record)
    return found


def _is_equal(call: AlignedCall) -> bool:
    """True if both sides make the call, and its tensors have the same statistics."""
    pairs = [(row.target, row.golden) for row in call.rows if (row.target or row.golden) is not None]
    tensors = [pair for pair in pairs if any(each is not None and each.is_tensor for each in pair)]
    return bool(tensors) and all(
        one is not None and other is not None and relative_difference(one, other) == 0.0 for one, other in tensors
    )


def _of_layer(record: str, settings: Mapping[str, ModuleSettings]) -> str:
    name = kind_name(record).lower()
    curve = _CLASSES.get(name.removesuffix(_SUFFIX), "")
    if name != "gelu":
        return curve
    # That of PyTorch is made of either, and its argument tells.
    parsed = parse(record)
    known = None if parsed is None else settings.get(parsed.base)
    approximate = None if known is None else known.values.get(_APPROXIMATE)
    return "" if approximate is None else "tanh" if approximate == "tanh" else curve


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
