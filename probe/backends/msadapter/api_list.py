"""The functions that are recorded when torch is MindSpore underneath: those of torch's list that exist there."""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from probe.backends import torch as _torch_backend
from probe.backends.mindspore.hooks.api_hooks import async_work_types as of_mindspore
from probe.backends.msadapter.torch_modules import proxy_of, torch_module
from probe.backends.shared import api_list
from probe.backends.shared.api_list import Watched
from probe.backends.torch.hooks.npu_functions import npu_functions

_LIST = os.path.join(os.path.dirname(os.path.abspath(_torch_backend.__file__)), "hooks", "api_list.yaml")
_RISK_PREFIXES = {prefix: (prefix,) for prefix in ("Functional", "Tensor", "Torch", "Distributed", "NPU")}


def watched() -> dict[str, list[Watched]]:
    """Every function of torch's list that exists, by family, also where a user's hides it by now."""
    return {
        family: [*functions, *(copy for function in functions for copy in _on_proxy(function))]
        for family, functions in _listed().items()
    }


@functools.cache
def _listed() -> dict[str, list[Watched]]:
    root = torch_module()
    owners: dict[str, Any] = {
        "functional": torch_module("nn.functional"),
        "tensor": root.Tensor,
        "torch": root,
        "distributed": torch_module("distributed"),
    }
    families = api_list.watched(_LIST, owners, in_place=("distributed",))
    families["npu"] = npu_functions()
    return api_list.told_apart(families)


def _on_proxy(watched: Watched) -> Iterator[Watched]:
    """The proxy's own attribute of this name, which hides the one of the module."""
    if isinstance(watched.owner, types.ModuleType):
        proxy = proxy_of(watched.owner)
        held = vars(proxy).get(watched.attribute) if proxy is not None else None
        if held is not None:
            yield replace(watched, owner=proxy, function=held)


def async_work_types() -> list[type]:
    """The classes of what asynchronous communication returns, torch's ``Work`` and its subclasses included."""
    work = getattr(torch_module("distributed"), "Work", None)
    found = of_mindspore()
    ahead = [work] if isinstance(work, type) else []
    while ahead:
        kind = ahead.pop()
        found.append(kind)
        ahead += kind.__subclasses__()
    return found


def risk_class(base: str) -> str:
    """The class of the torch function of the same name; what a user registered is always ``core``."""
    return api_list.risk_class(base, _RISK_PREFIXES)
