"""Let functions that drop return their input.

The functions keep their identity and get another ``__code__``: only this reaches the copies made by ``from
torch.nn.functional import dropout`` and the layers of a framework, without a list of who holds one.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import Any

from probe.backends.shared.patching import Attributes
from probe.common.interfaces import Handle

# One for each way to be called, as the code must take the arguments of the function. They have a source of their own
# and are not made on the way: MindSpore's compiler reads the source of what it finds in the place of the original.


def _plain(input: Any, p: float = 0.5, training: bool = True) -> Any:
    return input


def _inplace(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return input


def _seeded(input: Any, p: float = 0.5, training: bool = True, seed: Any = None) -> Any:
    return input


def _inner(x: Any, p: float, training: bool) -> Any:
    return x


def _construct(self: Any, input: Any) -> Any:
    return input


# If somebody has wrapped the function: a wrapper's code knows things that ours does not, so it is not exchanged.


def _any_function(input: Any, *_: Any, **__: Any) -> Any:
    return input


def _any_method(self: Any, input: Any, *_: Any, **__: Any) -> Any:
    return input


def _shape(code: CodeType) -> tuple[Any, ...]:
    variadic = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount], code.co_kwonlyargcount, variadic, code.co_freevars


_CODES = {_shape(one.__code__): one.__code__ for one in (_plain, _inplace, _seeded, _inner, _construct)}
_OURS = (*_CODES.values(), _any_function.__code__, _any_method.__code__)


def return_input(owner: Any, name: str) -> Handle:
    """Make the function `name` of `owner` return its first argument until the handle is removed."""
    function = getattr(owner, name)
    code = getattr(function, "__code__", None)
    attributes = Attributes()
    if code not in _OURS:
        fitting = _CODES.get(_shape(function.__code__)) if isinstance(function, FunctionType) else None
        if fitting is not None:
            return _ExchangedCode(function, fitting)
        attributes.set(owner, name, _any_method if inspect.isclass(owner) else _any_function)
    return attributes


class _ExchangedCode:
    """A function that runs `code` until `remove`."""

    def __init__(self, function: FunctionType, code: CodeType) -> None:
        self._function = function
        self._before = function.__code__
        self._code = code
        function.__code__ = code

    def remove(self) -> None:
        if self._function.__code__ is self._code:
            self._function.__code__ = self._before
