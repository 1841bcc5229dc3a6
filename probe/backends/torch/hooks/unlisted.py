"""The names of functions that are in no list: task overflow_check records every function that makes a number.

The list is msProbe's, and leaves out casts by some of their names, what allocates memory, and most of ``torch.fft``,
``torch.special`` and ``torch.linalg``. What such a function makes would be blamed on the next call.
"""

from __future__ import annotations

import functools
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch

from probe.common.interfaces import ApiName
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

_MODULES = (torch.linalg, torch.fft, torch.special)


def unlisted_name(function: Any) -> ApiName | None:
    """The name of a built-in function that no family has; ``None`` if it makes and changes no number of a tensor."""
    attribute = function.__name__
    if computes_nothing(attribute):
        return None
    if type(function) in (MethodDescriptorType, WrapperDescriptorType):
        return ApiName(f"Tensor.{attribute}", attribute)
    owner, attribute = _places().get(function, (torch, attribute))
    # Of a dotted name the last part stands in the record, as with the functions of the list.
    is_other = owner is not torch and hasattr(torch, attribute)
    return ApiName(f"Torch.{attribute}", attribute, place=(owner, attribute) if is_other else None)


def computes_nothing(name: str) -> bool:
    """Whether a function makes and changes no number of a tensor, by the table of functions."""
    return has(name, Trait.TELLS, Trait.BRINGS_IN, Trait.HANDS_ON) and not has(name, Trait.OVERWRITES, Trait.LEAVES_OUT)


@functools.cache
def _places() -> dict[Any, tuple[Any, str]]:
    return {
        function: (module, attribute)
        for module in _MODULES
        for attribute, function in vars(module).items()
        if type(function) is BuiltinFunctionType
    }
