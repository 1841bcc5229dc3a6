"""The function that a record's name stands for, looked up where the hooks find it."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from typing import Any, Callable

import torch

from probe.backends.torch import internals
from probe.backends.torch.hooks import api_list
from probe.backends.torch.hooks.api_hooks import RECURRENT

_REMOVED = "torch._linalg_utils"
"""The module of functions that torch has only left a message of, such as ``torch.lstsq``."""

_FILE = re.compile("file|path|library|code", re.IGNORECASE)
"""In names of arguments that say what is read, written, loaded or compiled."""
_ACTING = re.compile("file|load|save|dump|print|compile|custom|hook|record|profil|config", re.IGNORECASE)
"""In names of functions that do more than compute."""


def function(base: str, attributes: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
    """What ``Prefix.api`` calls now, replacements included; ``None`` for a name that this torch does not have."""
    places = _places().get(base)
    if places is not None:
        found = [call for call in (getattr(owner, attribute, None) for owner, attribute in places) if call is not None]
        return _first_that_takes(found) if len(found) > 1 else next(iter(found), None)
    prefix, _, api = base.partition(".")
    if prefix == "Aten":
        return _aten(api)
    if prefix == "NPU" and api.startswith("npu_") and _ACTING.search(api) is None:
        # Not in the list of a process that imported torch_npu after it was made.
        of_npu = getattr(sys.modules.get("torch_npu"), api, None)
        return of_npu if callable(of_npu) else None
    return None


def reference_function(base: str, attributes: Mapping[str, Any] | None = None) -> None:
    """Nothing: torch computes all of its functions in float64."""
    return None


def place(base: str) -> tuple[Any, str] | None:
    """What has the function of this name, and as which attribute; ``None`` where `function` is none."""
    places = _places().get(base)
    if places is not None:
        return places[0]
    prefix, _, api = base.partition(".")
    owners = {"Aten": torch.ops.aten, "NPU": sys.modules.get("torch_npu")}
    return (owners[prefix], api) if prefix in owners and function(base) is not None else None


@functools.cache
def _places() -> dict[str, list[tuple[Any, str]]]:
    """Owner and attribute of every name; of names that two functions share, what stands in ``torch`` itself first."""
    families = api_list.watched()
    places: dict[str, list[tuple[Any, str]]] = {}
    for family, functions in families.items():
        if family in ("distributed", "npu"):
            continue
        for watched in functions:
            if getattr(watched.function, "__module__", None) != _REMOVED:
                places.setdefault(watched.name.base, []).append((watched.owner, watched.attribute))
    for candidates in places.values():
        candidates.sort(key=lambda place: place[0] is not torch)
    vf = internals.VariableFunctions
    for attribute in {watched.attribute for watched in families.get("torch", [])} | RECURRENT:
        if hasattr(vf, attribute):
            places.setdefault(f"VF.{attribute}", [(vf, attribute)])
    return places


def _first_that_takes(functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    """One name of two functions, ``torch.norm`` and ``torch.linalg.norm`` for example: keywords tell which it was."""

    def call(*args: Any, **kwargs: Any) -> Any:
        for candidate in functions[:-1]:
            try:
                return candidate(*args, **kwargs)
            except TypeError:
                continue
        return functions[-1](*args, **kwargs)

    return call


def _aten(api: str) -> Callable[..., Any] | None:
    """An operator of ATen that takes tensors, and no name of a file: those must not be in reach of a name in a dump.

    What is called unsafe and is sparse believes indices that it is given, and would write where they point.
    """
    if "unsafe" in api and "sparse" in api:
        return None
    packet = getattr(torch.ops.aten, api, None)
    if not isinstance(packet, internals.OperatorPacket):
        return None
    overloads: Any = packet.overloads
    arguments = [argument for each in overloads() for argument in getattr(packet, each)._schema.arguments]
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments)
    takes_files = any("str" in str(argument.type) and _FILE.search(argument.name) for argument in arguments)
    return packet if takes_tensors and not takes_files else None
