"""The recorded torch functions, their names, and their risk classes.

The list is msProbe's, and leaves out most of ``torch.fft`` and ``torch.special``, what allocates memory, and more. Task
overflow_check records these functions, too: what such a function makes would be blamed on the next call.
"""

from __future__ import annotations

import functools
import os
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch

from probe.backends.shared import api_list
from probe.backends.shared.api_list import Watched
from probe.backends.torch import internals
from probe.backends.torch.hooks.npu_functions import npu_functions
from probe.common.interfaces import ApiName
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

_LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "api_list.yaml")
_RISK_PREFIXES = {prefix: (prefix,) for prefix in ("Functional", "Tensor", "Torch", "Distributed", "NPU")}
# Below these prefixes a function has the class of the torch function of the same name.
_RISK_PREFIXES.update(VF=("Torch",), Aten=("Torch",))

_MODULES = (torch.linalg, torch.fft, torch.special)
"""Beside torch itself, what has functions that are in no list."""


def _owners() -> dict[str, Any]:
    owners: dict[str, Any] = {
        "functional": torch.nn.functional,
        "tensor": torch.Tensor,
        "torch": torch,
        "vf": internals.VariableFunctions,
    }
    if torch.distributed.is_available():
        owners["distributed"] = torch.distributed
    return owners


@functools.cache
def watched() -> dict[str, list[Watched]]:
    """Every function of the list that this torch has, by family."""
    families = api_list.watched(_LIST, _owners(), in_place=("distributed",))
    families["npu"] = npu_functions()
    return api_list.told_apart(families, is_removed)


def is_removed(watched: Watched) -> bool:
    """True of a function that torch has only left a message of, such as ``torch.lstsq``."""
    return getattr(watched.function, "__module__", None) == "torch._linalg_utils"


def risk_class(base: str) -> str:
    """``core``, ``low`` or ``middle`` of ``Prefix.api``; what a user registered is always ``core``."""
    return api_list.risk_class(base, _RISK_PREFIXES)


def unlisted_name(function: Any) -> ApiName | None:
    """The name of a built-in function that no family has; ``None`` if it makes and changes no number of a tensor."""
    attribute = function.__name__
    if computes_nothing(attribute):
        return None
    if type(function) in (MethodDescriptorType, WrapperDescriptorType):
        return ApiName(f"Tensor.{attribute}", attribute)
    owner, attribute = _owned_elsewhere().get(function, (torch, attribute))
    # Of a dotted name the last part stands in the record, as with the functions of the list.
    is_other = owner is not torch and hasattr(torch, attribute)
    return ApiName(f"Torch.{attribute}", attribute, function=f"{owner.__name__}.{attribute}" if is_other else "")


def computes_nothing(name: str) -> bool:
    """True if a function makes and changes no number of a tensor, by the table of functions."""
    return has(name, Trait.TELLS, Trait.BRINGS_IN, Trait.HANDS_ON) and not has(name, Trait.OVERWRITES, Trait.LEAVES_OUT)


@functools.cache
def _owned_elsewhere() -> dict[Any, tuple[Any, str]]:
    return {
        function: (module, attribute)
        for module in _MODULES
        for attribute, function in vars(module).items()
        if type(function) is BuiltinFunctionType
    }
