"""Keeping ``torch.jit.script`` away from hooks: it compiles a module with its hooks, and functions by their source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any, Callable, Optional

import torch

from probe.backends.shared.patching import CodeSwap, plain_swap
from probe.backends.torch import internals
from probe.backends.torch.guards import guarded
from probe.common.interfaces import Logs

Suspended = Callable[[Optional[torch.nn.Module]], "AbstractContextManager[Any]"]
"""Gives what suspends hooks while a module is made into a ScriptModule, or a function (``None``) into another."""
_FRAMES_BETWEEN = 4
"""The frames of the code that was put in place, of its handler, and of the two that it calls here."""
_NAME = "torch.jit.script"


class _ScriptGuard:
    """Suspends the hooks of all that have asked for it while ``torch.jit.script`` works.

    There is one place to put code into, so there is one of these.
    """

    def __init__(self) -> None:
        self._asked: dict[int, tuple[Suspended, Logs]] = {}
        self._swaps: list[CodeSwap] = []
        for function, work in (
            (internals.script_module_maker, self._make_module),
            (internals.script_function_maker, self._make_function),
        ):
            if isinstance(function, FunctionType):
                self._swaps.append(plain_swap(function, work))

    def _make_module(self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._aside(args[0] if args else kwargs.get("nn_module"), body, args, kwargs)

    def _make_function(self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(args[0] if args else kwargs.get("obj"), torch.nn.Module):
            return body(*args, **kwargs)
        # It looks up names in the frame of whoever called it, which is so many frames further away now.
        kwargs = {**kwargs, "_frames_up": kwargs.get("_frames_up", 0) + _FRAMES_BETWEEN}
        return self._aside(None, body, args, kwargs)

    def _aside(
        self, module: torch.nn.Module | None, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call `body` while hooks are suspended; what cannot be suspended, or put back, is logged."""
        asked = list(self._asked.values())
        stacks: list[ExitStack | None] = []
        # No comprehension: it is a call, which can fail where this one did not.
        for suspended, logs in asked:
            stacks.append(guarded(logs, _NAME, _entered, suspended, module))
        try:
            return body(*args, **kwargs)
        finally:
            for (_, logs), stack in zip(reversed(asked), reversed(stacks)):
                if stack is not None:
                    guarded(logs, _NAME, stack.close)

    def install(self, owner: object, suspended: Suspended, logs: Logs) -> None:
        self._asked[id(owner)] = suspended, logs
        for swap in self._swaps:
            swap.install()

    def remove(self, owner: object) -> None:
        self._asked.pop(id(owner), None)
        if not self._asked:
            for swap in self._swaps:
                swap.restore()


def _entered(suspended: Suspended, module: torch.nn.Module | None) -> ExitStack:
    with ExitStack() as stack:
        stack.enter_context(suspended(module))
        return stack.pop_all()


script_guard = _ScriptGuard()


def without_hooks(kind: type) -> Suspended:
    """A context that leaves a module, and all modules inside it, without forward hooks of class `kind`."""

    def suspended(module: torch.nn.Module | None) -> AbstractContextManager[Any]:
        stack = ExitStack()
        for each in () if module is None else module.modules():
            stack.enter_context(_without(each._forward_pre_hooks, kind))
            stack.enter_context(_without(each._forward_hooks, kind))
        return stack

    return suspended


@contextmanager
def _without(hooks: dict[int, Any], kind: type) -> Iterator[None]:
    before = dict(hooks)
    ours = [number for number, hook in before.items() if isinstance(hook, kind)]
    for number in ours:
        del hooks[number]
    try:
        yield
    finally:
        if ours:
            # In the places that they had.
            hooks.clear()
            hooks.update(before)
