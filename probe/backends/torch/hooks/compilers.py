"""Modules that ``torch.compile`` and ``torch.jit.script`` make, and keeping hooks out of what these compile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any, Callable, Optional

import torch

from probe.backends.shared.patching import Attributes, CodeSwap, plain_swap
from probe.backends.torch import internals
from probe.backends.torch.guards import compiling, guarded, passed_over
from probe.common import log
from probe.common.callstack import hide_own_frames
from probe.common.interfaces import Handle, Logs, ModuleName


def compiled_by_wrapper(module: torch.nn.Module) -> bool:
    """True if ``torch.compile(other)`` returned `module`."""
    frames = sys.modules.get("torch._dynamo.eval_frame")  # not imported unless somebody compiles
    return frames is not None and isinstance(module, frames.OptimizedModule)


def compiled_in_place(module: torch.nn.Module) -> bool:
    """True if ``module.compile()`` was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def compiled_forward(module: torch.nn.Module) -> bool:
    """True if the module's own ``forward`` was returned by ``torch.compile``."""
    forward = getattr(module, "forward", None)
    return not compiled_by_wrapper(module) and hasattr(forward, "_torchdynamo_orig_callable")


def something_is_compiled() -> bool:
    """True if the program has called ``torch.compile``, whether what it returned has run or not.

    torch keeps the compilers that were asked for until ``torch._dynamo.reset``; ``torch.compiler.disable`` leaves a
    ``None`` there.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return any(each is not None for each in getattr(frames, "cached_backends", {}).values())


def say_what_is_compiled(modules: list[tuple[ModuleName, torch.nn.Module]], given: list[torch.nn.Module]) -> None:
    """Say of each compiled module, once, what cannot be seen of it."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return  # All that compiles imports it.
    for name, module in modules:
        if compiled_by_wrapper(module) or compiled_in_place(module) or compiled_forward(module):
            log.warning(
                f"{name.base} is compiled with torch.compile and runs as a whole: it is one record, and the modules "
                "inside it have none.",
                once=f"compiled {name.base}",
            )
    recorded = {id(module) for _, module in modules}
    for index, model in enumerate(given):
        if id(model) not in recorded and (compiled_in_place(model) or compiled_forward(model)):
            log.warning(
                "the model given to start is compiled as a whole: its modules have no records. To record them, compile "
                "it after collecting, or compile its blocks.",
                once=f"compiled model {index}",
            )


def seen_from_outside(module: torch.nn.Module, before: Callable[..., None], after: Callable[..., None]) -> Handle:
    """Call `before` and `after` around the calls of a module as its hooks would be, where it cannot have hooks.

    Hooks proper are inside of what is compiled in place; and a module may compute otherwise where it has some. torch
    calls what is compiled in the place of the module, and so what is put there.
    """
    compiled: Any = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        called: Any = module
        if compiling():
            return (compiled or called._call_impl)(*args, **kwargs)
        # A replica of DataParallel has the attributes of the module that it was made from, and parameters of its own.
        called = sys._getframe(1).f_locals.get("self", module)
        before(called, args, kwargs)
        output = None
        try:
            output = (compiled or called._call_impl)(*args, **kwargs)
        except BaseException as error:
            hide_own_frames(error)
            raise
        finally:
            after(called, args, kwargs, output)
        return output

    attributes = Attributes()
    attributes.set(module, "_compiled_call_impl", call)
    return attributes


def readable_swap(function: FunctionType, record: Callable[..., Any]) -> CodeSwap:
    """A `CodeSwap` that torch's compiler reads as the function itself.

    Args:
        function: one of torch, written in Python.
        record: called in its place with a function that does what it did, and its args and kwargs.
    """
    body = function

    # The compiler can only read a function that refers to nothing but functions.
    @passed_over
    def handle(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if compiling():
            return body(*args, **kwargs)
        try:
            return record(body, args, kwargs)
        except BaseException as error:
            hide_own_frames(error)
            raise

    def changing(swap: CodeSwap) -> None:
        nonlocal body
        body = swap.body
        _forget_signature(function)

    return CodeSwap(function, handle, changing)


def _forget_signature(function: Any) -> None:
    """Have torch's compiler look anew at what arguments `function` takes, since it gets other code.

    The compiler remembers them by the function, not by its code.
    """
    functions = sys.modules.get("torch._dynamo.variables.functions")
    remembered = getattr(functions, "_spec_cache", None)
    if remembered is not None:
        remembered.pop(function, None)


# --- torch script


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
