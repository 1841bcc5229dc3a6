"""Modules that run as ``torch.compile`` made them: what they are seen as, and keeping their compiled code as it is.

Compiled code runs as a whole. To see the modules inside it, it would have to be broken up there and compiled again, and
would not give the same last bits. So a compiled module is one call, seen from outside, and what is inside has no
records of modules.

Hooks of inner modules are read by the compiler with the code around them and find nothing to do there. They are what
compiled code asks about before it runs: a hook that is new after every `start` would have everything compiled again
every time, and after eight times torch gives up and runs the code uncompiled, with other last bits. So a module gets
the same hooks under the same numbers each time.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, Callable

import torch
from torch.utils.hooks import RemovableHandle

from probe.backends.shared.patching import Attributes, CodeSwap
from probe.backends.torch.guards import compiling, passed_over
from probe.common import log
from probe.common.callstack import hide_own_frames
from probe.common.interfaces import Handle, ModuleName


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


def registered_as(number: int | None, register: Callable[[], RemovableHandle]) -> RemovableHandle:
    """Register a hook under the number it had before, where it had one."""
    following = RemovableHandle.next_id
    if number is None:
        return register()
    try:
        RemovableHandle.next_id = number
        return register()
    finally:
        RemovableHandle.next_id = following
