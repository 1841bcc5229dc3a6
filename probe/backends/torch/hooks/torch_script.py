"""Keeping ``torch.jit.script`` away from hooks: it compiles a module with its hooks, and functions by their source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any, Callable

import torch
from torch.jit import _recursive

from probe.backends.shared.patching import CodeSwap

Suspended = Callable[[torch.nn.Module], "AbstractContextManager[Any]"]
"""Gives, for a module that is made into a ScriptModule, what suspends hooks until it is left."""


class _ScriptGuard:
    """Suspends the hooks of all that have asked for it while a module is made into a ScriptModule.

    There is one function to put code into, so there is one of these.
    """

    def __init__(self) -> None:
        function: Any = getattr(_recursive, "create_script_module", None)
        self._swap = CodeSwap(function, self._make) if isinstance(function, FunctionType) else None
        self._asked: dict[int, Suspended] = {}

    def _make(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._swap is not None
        body = self._swap.body
        module = args[0] if args else kwargs.get("nn_module")
        if not isinstance(module, torch.nn.Module):
            return body(*args, **kwargs)
        with ExitStack() as stack:
            for suspended in list(self._asked.values()):
                stack.enter_context(suspended(module))
            return body(*args, **kwargs)

    def install(self, owner: object, suspended: Suspended) -> None:
        self._asked[id(owner)] = suspended
        if self._swap is not None:
            self._swap.install()

    def remove(self, owner: object) -> None:
        self._asked.pop(id(owner), None)
        if self._swap is not None and not self._asked:
            self._swap.restore()


script_guard = _ScriptGuard()


def without_hooks(kind: type) -> Suspended:
    """What leaves a module, and all inside of it, without forward hooks of class `kind`."""

    def suspended(module: torch.nn.Module) -> AbstractContextManager[Any]:
        stack = ExitStack()
        for each in module.modules():
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
