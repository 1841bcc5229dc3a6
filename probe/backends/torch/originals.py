"""The functions that torch itself has, where a user has put others in their place.

To tell a function mode which function was called, torch looks the function up by its name at that moment, and finds the
one that the user has assigned there: the wrapper from which the call comes. A mode that calls it calls it again. So a
mode of the tool asks here for the function that is really on its way, and the tool calls tensors' methods from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any, Callable, cast

import torch

from probe.backends.torch import internals

own: Any = torch.Tensor.__base__
"""The class with the methods of tensors that are not written in Python, and `functions` those of ``torch``.

Nobody can assign to them. The tool calls these, and not those of `torch.Tensor`, which a user may have replaced.
"""
functions: Any = internals.built_in_functions
BUILT_IN = frozenset((BuiltinFunctionType, MethodDescriptorType))
"""The types of functions that call no others which could be recorded, and are not operators of `torch.ops`."""
HANDING_OVER = torch.overrides.handle_torch_function.__code__
"""By this a Python function hands itself to a mode, or to the class of a tensor."""
OPERATORS = (internals.Operator, internals.OperatorPacket)
_SLOTS = ("__get__", "__set__", "__delete__")
_BOUND = (MethodType, MethodWrapperType)
_ORIGINALS: dict[Any, dict[str, Any]] = {
    module: {name: function for name, function in vars(module).items() if type(function) is BuiltinFunctionType}
    for module in internals.modules_of_functions
}
_ORIGINALS[torch.Tensor] = {
    # Of `object` torch looks up nothing.
    name: value
    for kind in reversed(own.__mro__[:-1])
    for name, value in vars(kind).items()
}
"""Owners in which torch looks functions and attributes up, each with what was there at first."""


def is_of_torch(function: FunctionType | Any) -> bool:
    """True if a function is torch's own, and not one that takes its name, as ``functools.wraps`` makes them."""
    if not isinstance(function, FunctionType):
        return type(function) in BUILT_IN
    return str(function.__globals__.get("__name__")).partition(".")[0] == "torch"


def of_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of torch that a user has wrapped with ``functools.wraps``; any other function itself."""
    inner: Any = function
    while not is_of_torch(inner):
        inner = getattr(inner, "__wrapped__", None)
        if inner is None:
            return function
    return cast("Callable[..., Any]", inner)


def built_in(owner: Any, name: str) -> Any | None:
    """The built-in function that `owner` (``torch`` or ``torch.Tensor``) had under `name` at first, if it is known."""
    if owner is torch.Tensor:
        found = _ORIGINALS[owner].get(name)
    else:
        found = getattr(functions, name, None) if owner is torch else None
    return found if type(found) in (*BUILT_IN, WrapperDescriptorType) else None


_hints: dict[int, tuple[Any, str]] = {}
"""By the identity of something, the owner in which it was found once and is looked for first."""


def looked_up_as(found: Any) -> Any | None:
    """The built-in function that was called where torch, looking it up, found `found`; ``None`` if none is known."""
    if isinstance(found, OPERATORS) or type(found) is WrapperDescriptorType:
        return found
    # The slot of an attribute, such as ``x.__get__``, and a bound method are made anew whenever they are asked for.
    identity = id(found.__self__ if type(found) in _BOUND else found)
    hint = _hints.get(identity)
    for owner, name in itertools.chain(() if hint is None else (hint,), _replaced()):
        original = _original(owner, name, found)
        if original is not None:
            _hints[identity] = owner, name
            return original
    return _made_anew(found)


def _replaced() -> Iterator[tuple[Any, str]]:
    """Owners and names of what is not there any more."""
    for owner, originals in _ORIGINALS.items():
        held = vars(owner)
        for name in originals.keys() & held.keys():
            if held[name] is not originals[name]:
                yield owner, name


def _original(owner: Any, name: str, found: Any) -> Any | None:
    """The original of `found`, if that is what torch finds under `name` now."""
    now, original = getattr(owner, name, None), _ORIGINALS[owner][name]
    if type(original) in (*BUILT_IN, WrapperDescriptorType):
        return original if _is(now, found) else None
    # Of an attribute torch calls what gets, sets or deletes it.
    slots = (slot for slot in _SLOTS if _is(getattr(now, slot, None), found))
    return getattr(original, next(slots, ""), None)


def _made_anew(found: Any) -> Any | None:
    """The original of an object that a descriptor made anew: of the same once more, or of the only one of its kind."""
    alike = []
    for owner, name in _replaced():
        now, original = getattr(owner, name, None), _ORIGINALS[owner][name]
        if owner is torch.Tensor and type(original) in (*BUILT_IN, WrapperDescriptorType) and type(now) is type(found):
            if now == found or _hold_the_same(now, found):
                return original
            alike.append(original)
    return alike[0] if len(alike) == 1 else None


def _is(now: Any, found: Any) -> bool:
    # Objects of other types are the user's, who may compare them in any way.
    return now is found or (type(now) is type(found) and type(found) in _BOUND and bool(now == found))


def _hold_the_same(one: Any, other: Any) -> bool:
    """True if two objects have the same attributes with the same objects, where nothing says that they are equal."""
    held, of_other = getattr(one, "__dict__", None), getattr(other, "__dict__", None)
    if not held or of_other is None or held.keys() != of_other.keys():
        return False
    return all(value is of_other[name] for name, value in held.items())
