"""Families of rows: the kind of tensor, the position in the order of execution of a step, the module in a name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from probe.common.report.trends import COURSE, START
from probe.monitor.alerts.rows import FamilyRows, Finding


class Kind(Enum):
    """The kind of tensor that rows describe; thresholds depend on it."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"
    WEIGHT = "weight"
    STATE = "optimizer state"
    OTHER = "other"


_BEFORE_STEP, _IN_STEP = "STATE", "STATE AFTER"
_KINDS = {
    # A step of the first monitor in the order of execution: the state and the weights it starts from, ...
    COURSE: Kind.OTHER,
    START: Kind.OTHER,
    "param_origin": Kind.WEIGHT,
    _BEFORE_STEP: Kind.STATE,
    "linear_hook": Kind.OTHER,
    # ... the pass, ...
    "actv": Kind.ACTIVATION,
    "attention_hook": Kind.OTHER,
    "moe_router_logit_hook": Kind.OTHER,
    "moe_router_weight_hook": Kind.OTHER,
    "actv_grad": Kind.GRADIENT,
    "grad_unreduced": Kind.GRADIENT,
    "comm": Kind.OTHER,
    # ... and the update.
    "grad_reduced": Kind.GRADIENT,
    "grad_sign": Kind.OTHER,
    "other": Kind.OTHER,
    _IN_STEP: Kind.STATE,
    "update": Kind.OTHER,
    "param_updated": Kind.WEIGHT,
}
"""Families; kind `OTHER` is not of tensors but of agreement of directions, spectral norms, entropies, collectives."""
_POSITIONS = {name: position for position, name in enumerate(_KINDS)}
_TENSOR = re.compile(r"\.(?:grad_)?(?:input|output)(?:[._]?\d)*$")


def kind_of(family: str) -> Kind:
    """The kind of a family; a name that is not known is the state of an optimizer (``momentum_buffer``)."""
    return _KINDS.get(family, Kind.STATE)


def position(family: str, states_after: bool = False) -> int:
    """The position of a family in the order of execution of a step.

    Args:
        family: The family.
        states_after: The state of the optimizer is recorded after the update (`TrainerMonitorV2`) and contains the
            step. By default it is recorded before, and was made by the step before.
    """
    return _POSITIONS.get(family, _POSITIONS[_IN_STEP if states_after else _BEFORE_STEP])


def in_execution_order(rows: Iterable[FamilyRows]) -> list[FamilyRows]:
    """Families in the order of execution."""
    return sorted(rows, key=lambda each: position(each.family, each.states_after))


def execution_order(found: Finding) -> tuple[int, int, int, int, int]:
    """The key by which findings are sorted, so that the row that began comes first.

    Micro steps run one after the other, each forward and backward; weights and state come before them, and what is made
    of all of them together comes after them.
    """
    at = position(found.family, found.is_after)
    in_micro = found.micro_step if position("actv") <= at <= position("actv_grad") else at
    group = 0 if at < position("actv") else 1 if at <= position("actv_grad") else 2
    return found.step, group, in_micro, at, found.call


def module_of(name: str) -> str:
    """The module of a row of activations.

    Example:
        >>> module_of("blocks.0.qkv.output_1")
        'blocks.0.qkv'
    """
    return _TENSOR.sub("", name)
