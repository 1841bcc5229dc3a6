"""The recorded MindSpore functions, their names, and their risk classes."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import mindspore

from probe.backends.shared import api_list
from probe.backends.shared.api_list import Watched

_LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "api_list.yaml")

# Prefix of a family, and the torch families by whose table its functions are classified.
_RISK_PREFIXES: dict[str, tuple[str, ...]] = {
    "Functional": ("Torch", "Functional"),
    "Tensor": ("Tensor",),
    "Mint": ("Torch", "Functional"),
    "MintFunctional": ("Functional",),
    "Distributed": ("Distributed",),
    "MintDistributed": ("Distributed",),
    # The record of a primitive is named after the attribute that holds it, which says nothing about its work.
    "Primitive": (),
    "Jit": (),
}


@functools.cache
def watched() -> dict[str, list[Watched]]:
    """Every function of the list that this MindSpore has, by family."""
    owners: dict[str, Any] = {
        "functional": mindspore.ops,
        "tensor": mindspore.Tensor,
        "mint": mindspore.mint,
        "mint_functional": mindspore.mint.nn.functional,
        "mint_distributed": importlib.import_module("mindspore.mint.distributed"),
    }
    try:
        owners["distributed"] = importlib.import_module("mindspore.communication.comm_func")
    except ImportError:
        pass  # deprecated since 2.9
    return api_list.told_apart(api_list.watched(_LIST, owners, in_place=("mint_distributed",)))


def risk_class(base: str) -> str:
    """``core``, ``low`` or ``middle`` of ``Prefix.api``; what a user registered is always ``core``.

    A function has the class of the torch function of the same name, where there is one: of `torch` or
    `torch.nn.functional` for ops and mint, of the family with the same purpose for the others. A name that torch does
    not have is ``middle``, and so are primitives.
    """
    return api_list.risk_class(base, _RISK_PREFIXES)
