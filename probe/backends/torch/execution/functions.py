"""The function that a record's name stands for, looked up where the hooks find it."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from typing import Any, Callable

import torch

from probe.backends.shared.api_list import Places, places
from probe.backends.torch import internals
from probe.backends.torch.hooks import api_list
from probe.backends.torch.hooks.api_hooks import overload_name

_FILE = re.compile("file|path|library|code", re.IGNORECASE)
"""In names of arguments that say what is read, written, loaded or compiled."""
_ACTING = re.compile("file|load|save|dump|print|compile|custom|hook|record|profil|config", re.IGNORECASE)
"""In names of functions that do more than compute."""


def function(base: str, attributes: Mapping[str, Any] | None = None, called: str = "") -> Callable[..., Any] | None:
    """The function that ``Prefix.api`` calls now, replacements included; ``None`` for a name that this torch has not.

    A record without `called` may be of a tool that does not tell functions of one name apart.
    """
    places = [_places()[base, called]] if (base, called) in _places() else []
    if not called:
        places += _namesakes().get(base, [])
    found = [call for call in (getattr(owner, attribute, None) for owner, attribute in places) if call is not None]
    if found:
        return _first_that_takes(found) if len(found) > 1 else found[0]
    prefix, _, api = base.partition(".")
    if prefix == "Aten":
        return _aten(api, called)
    if prefix == "NPU" and not called and api.startswith("npu_") and _ACTING.search(api) is None:
        # Not in the list of a process that imported torch_npu after it was made.
        of_npu = getattr(sys.modules.get("torch_npu"), api, None)
        return of_npu if callable(of_npu) else None
    return None


def reference_function(base: str, attributes: Mapping[str, Any] | None = None, called: str = "") -> None:
    """Nothing: torch computes all of its functions in float64."""
    return None


def place(base: str, called: str = "") -> tuple[Any, str] | None:
    """The owner of the function of this name, and its attribute; ``None`` if `function` gives none."""
    known = _places().get((base, called)) or next(iter(_namesakes().get(base, []) if not called else []), None)
    if known is not None:
        return known
    prefix, _, api = base.partition(".")
    owners = {"Aten": torch.ops.aten, "NPU": sys.modules.get("torch_npu")}
    return (owners[prefix], api) if prefix in owners and function(base, called=called) is not None else None


@functools.cache
def _places() -> Places:
    """Owner and attribute of every name."""
    families = api_list.watched()
    there = {family: [each for each in found if not api_list.is_removed(each)] for family, found in families.items()}
    found = dict(places(there, ("distributed", "npu")))
    vf = internals.VariableFunctions
    for attribute in {watched.attribute for watched in families.get("torch", [])}:
        if hasattr(vf, attribute):
            found.setdefault((f"VF.{attribute}", ""), (vf, attribute))
    return found


@functools.cache
def _namesakes() -> dict[str, list[tuple[Any, str]]]:
    """The owners and names of functions whose names in records stand for another one."""
    found: dict[str, list[tuple[Any, str]]] = {}
    for (base, called), place in _places().items():
        if called:
            found.setdefault(base, []).append(place)
    return found


def _first_that_takes(functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    """One name of two functions, ``torch.norm`` and ``torch.linalg.norm`` for example: keywords tell which it was."""

    @functools.wraps(functions[0])
    def call(*args: Any, **kwargs: Any) -> Any:
        for candidate in functions[:-1]:
            try:
                return candidate(*args, **kwargs)
            except TypeError:
                continue
        return functions[-1](*args, **kwargs)

    return call


def _aten(api: str, called: str) -> Callable[..., Any] | None:
    """An operator of ATen that takes tensors, and no name of a file: those must not be in reach of a name in a dump.

    With `called`, such as ``torch.ops.aten.div.Scalar``, one overload of it.

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
    if not takes_tensors or takes_files:
        return None
    known = {overload_name(api, each): each for each in overloads()}
    return getattr(packet, known[called]) if called in known else None if called else packet
