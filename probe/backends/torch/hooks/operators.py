"""Seeing every operator of ATen, in the forward and in the backward, below autograd and autocast."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from probe.backends.protocol import OperatorListener
from probe.backends.torch.guards import guarded
from probe.backends.torch.internals import TorchDispatchMode
from probe.common.interfaces import Handle
from probe.common.operations.function import COMPUTING_NOTHING
from probe.common.operations.lookup import has

_SEEDED = getattr(torch.Tag, "nondeterministic_seeded", None)


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reports operators to `listener` between `attach` and `remove`."""

    def __init__(self, listener: OperatorListener) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listener = listener
        self._attached = False

    def attach(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]
        self._attached = True

    def remove(self) -> None:
        if self._attached:
            self._attached = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        listener = self._listener
        entered = guarded(listener, function, self._enter, function, args, kwargs)
        output = function(*args, **kwargs)
        if entered is not None:
            guarded(listener, function, self._leave, *entered, args, kwargs, output)
        return output

    def _enter(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """The listener's answer to a call, and the function that it was told of; ``None`` if it takes no part."""
        if _passed_over(function) or _draws(function, args, kwargs):
            return None
        call = _returning_written(function)
        entered = self._listener.enter_operator(_name(function), call, args, kwargs)
        return None if entered is None else (entered, call)

    def _leave(self, entered: Any, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        self._listener.leave_operator(entered, call.written(args, kwargs) if isinstance(call, _Writing) else output)


def attach_operators(listener: OperatorListener) -> Handle:
    """Report every operator that runs on this thread to `listener`."""
    mode = OperatorMode(listener)
    mode.attach()
    return mode


class _Writing:
    """An operator that returns nothing, those of optimizers say, as one that returns what it writes to."""

    def __init__(self, function: Any, arguments: Sequence[Any]) -> None:
        self._function = function
        self._places = [(place, each.name) for place, each in enumerate(arguments) if _is_written(each)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._function(*args, **kwargs)
        return self.written(args, kwargs)

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments that the operator has written to."""
        return [args[place] if place < len(args) else kwargs.get(name) for place, name in self._places]


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


@functools.cache
def _returning_written(function: Any) -> Any:
    schema = function._schema
    return function if schema.returns else _Writing(function, schema.arguments)


@functools.cache
def _name(function: Any) -> str:
    packet, overload = function.overloadpacket, function._overloadname
    name = packet._qualified_op_name.partition("::")[2]
    return f"Aten.{name}" if overload == "default" else f"Aten.{name}.{overload}"


@functools.cache
def _passed_over(function: Any) -> bool:
    """True if an operator is not one of ATen's, or only computes views or no tensor from tensors."""
    schema = function._schema
    if not schema.name.startswith("aten::") or has(_name(function), *COMPUTING_NOTHING):
        return True
    if not any("Tensor" in str(each.type) for each in schema.arguments):
        return True
    if not schema.returns:
        return not any(_is_written(each) for each in schema.arguments)
    tensors = [each for each in schema.returns if "Tensor" in str(each.type)]
    return all(each.alias_info is not None and not each.alias_info.is_write for each in tensors)


@functools.cache
def _drop_place(function: Any) -> int | None:
    """The index of the argument that is the probability of dropping elements; ``None`` if there is none."""
    names = [argument.name for argument in function._schema.arguments]
    return names.index("dropout_p") if "dropout_p" in names else None


def _draws(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True if this call draws random numbers; attention without dropout does not."""
    if _SEEDED is None or _SEEDED not in function.tags:
        return False
    place = _drop_place(function)
    if place is None:
        return True
    given = args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
    return bool(given != 0)
