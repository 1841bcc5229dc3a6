"""The functions that torch itself has, where a user has put others in their place.

To tell a function mode which function was called, torch looks the function up by its name at that moment, and finds the
one that the user has assigned there: the wrapper from which the call comes. A mode that calls it calls it again. So a
mode of the tool asks here for the function that is really on its way, and the tool calls tensors' methods from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any, Callable, NamedTuple, cast

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
_IN_MODULES = [
    (module, name, function)
    for module in internals.modules_of_functions
    for name, function in vars(module).items()
    if type(function) is BuiltinFunctionType
]
_OF_TENSORS = {
    # Of `object` torch looks up nothing.
    name: value
    for kind in reversed(own.__mro__[:-1])
    for name, value in vars(kind).items()
}


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
        found = _OF_TENSORS.get(name)
    else:
        found = getattr(functions, name, None) if owner is torch else None
    return found if type(found) in (*BUILT_IN, WrapperDescriptorType) else None


def looked_up_as(found: Any) -> Any | None:
    """The built-in function that was called where torch, looking it up, found `found`; ``None`` if none is known."""
    if isinstance(found, OPERATORS) or type(found) is WrapperDescriptorType:
        return found
    known = _known.get(_identity(found))
    if known is not None and known.holds():
        return known.original
    return _of_tensors(found) or _in_a_module(found) or _made_anew(found)


class _FoundOriginal(NamedTuple):
    """An original that was found once; it is not looked for again while it is in its place."""

    owner: Any
    name: str
    held: Any
    found: Any
    """Held, so that nothing else gets its identity."""
    original: Any

    def holds(self) -> bool:
        return vars(self.owner).get(self.name) is self.held


_known: dict[tuple[int, str], _FoundOriginal] = {}


def forget() -> None:
    """Hold nothing of the user's any more."""
    _known.clear()


def _identity(found: Any) -> tuple[int, str]:
    """The slot of an attribute, such as ``x.__get__``, is another object whenever it is asked for."""
    if type(found) is MethodWrapperType:
        return id(found.__self__), found.__name__
    return id(found), ""


def _know(owner: Any, name: str, found: Any, original: Any) -> Any:
    """Note where `found` was, and forget what is no longer where it was; returns `original`."""
    for identity in [identity for identity, known in _known.items() if not known.holds()]:
        del _known[identity]
    _known[_identity(found)] = _FoundOriginal(owner, name, vars(owner).get(name), found, original)
    return original


def _replaced() -> Iterator[tuple[str, Any, Any]]:
    """Names of the class of tensors, what torch finds there in the place of something built-in, and what that was."""
    for name, held in list(vars(torch.Tensor).items()):
        original = _OF_TENSORS.get(name)
        if original is None or held is original:
            continue
        now = getattr(torch.Tensor, name, None)
        if type(original) in (*BUILT_IN, WrapperDescriptorType):
            yield name, now, original
        else:
            # Of an attribute torch calls what gets, sets or deletes it.
            for slot in _SLOTS:
                yield name, getattr(now, slot, None), getattr(original, slot, None)


def _of_tensors(found: Any) -> Any | None:
    for name, now, original in _replaced():
        if now is found or (type(found) is MethodWrapperType and type(now) is MethodWrapperType and now == found):
            return _know(torch.Tensor, name, found, original)
    return None


def _in_a_module(found: Any) -> Any | None:
    for module, name, function in _IN_MODULES:
        if vars(module).get(name) is found:
            return _know(module, name, found, function)
    return None


def _made_anew(found: Any) -> Any | None:
    """For descriptors that make another object whenever they are asked: the equal one, or the only one of its kind."""
    alike: list[Any] = []
    for _, now, original in _replaced():
        if type(now) is type(found):
            if now == found:
                return original
            alike.append(original)
    return alike[0] if len(alike) == 1 else None
