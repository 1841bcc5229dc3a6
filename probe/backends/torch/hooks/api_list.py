"""Which torch functions are recorded, under which names, and their risk classes."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from probe.backends.shared import api_list
from probe.backends.shared.api_list import Watched
from probe.backends.torch import internals
from probe.backends.torch.hooks.npu_functions import npu_functions

_LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "api_list.yaml")
_RISK_PREFIXES = {prefix: (prefix,) for prefix in ("Functional", "Tensor", "Torch", "Distributed", "NPU")}
# Below these prefixes a function has the class of the torch function of the same name.
_RISK_PREFIXES.update(VF=("Torch",), Aten=("Torch",))


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
