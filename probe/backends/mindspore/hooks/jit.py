"""Keeping out of MindSpore's compiler, and the code that runs in a compiled graph.

What is decorated with ``ms.jit`` is read by a compiler at its first call, together with the hooks of the cells in it
and the functions it names. It cannot read ours, and what it compiles is no business of a debugger: so everything that
is attached goes away for as long as the compiler works. The compiled cell or function itself is then called like any
other.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import mindspore as ms
from mindspore.ops import PrimitiveWithInfer, constexpr
from typing_extensions import Protocol

from probe.backends.mindspore.guards import guarded
from probe.backends.mindspore.internals import compilers
from probe.backends.shared.patching import Attributes
from probe.common import log
from probe.common.callstack import hide_own_frames
from probe.common.errors import MsprobeException
from probe.common.interfaces import Listener


class Attached(Protocol):
    """Something that can be taken away for a moment."""

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


class Compilation:
    """Suspends what was added whenever the compiler runs."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._attached: list[Attached] = []
        self._attributes = Attributes()
        self._depth = 0

    def add(self, attached: Attached) -> None:
        if not self._attached:
            for kind in compilers:
                self._attributes.set(kind, "compile", self._aside(kind.compile))
        self._attached.append(attached)

    def discard(self, attached: Attached) -> None:
        self._attached = [one for one in self._attached if one is not attached]
        if not self._attached:
            self._attributes.remove()

    def _aside(self, compiling: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compiling)
        def compile_aside(executor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return compiling(executor, *args, **kwargs)
            listener = self._listener
            guarded(listener, "ms.jit", _warn, executor)
            attached = list(self._attached)
            self._depth += 1
            try:
                for one in attached:
                    guarded(listener, "ms.jit", one.suspend)
                return compiling(executor, *args, **kwargs)
            except BaseException as error:
                hide_own_frames(error)
                raise
            finally:
                self._depth -= 1
                for one in attached:
                    guarded(listener, "ms.jit", one.resume)

        return compile_aside


def _warn(executor: Any) -> None:
    function = getattr(executor, "fn", None)
    if not str(getattr(function, "__module__", "")).startswith("mindspore."):  # its own optimizers compile too
        name = getattr(function, "__qualname__", "a cell")
        log.warning(
            f"{name} is compiled with ms.jit and runs as a whole: calls inside it have no records.",
            once=f"jit {name}",
        )


# --- graph mode


_PYNATIVE = "mindspore.set_context(mode=mindspore.PYNATIVE_MODE)"


class _Compiling(PrimitiveWithInfer):  # type: ignore[misc]
    """True for the compiler, which asks for the value, and false for Python, which calls it."""

    def __init__(self) -> None:
        super().__init__("Compiling")

    def __call__(self) -> bool:
        return False

    def __infer__(self) -> dict[str, object]:
        return {"dtype": ms.bool_, "shape": (), "value": True}


compiling = _Compiling()
"""``if compiling():`` chooses between what is compiled and what Python executes; the compiler reads the first only."""


_SAVING = ("Ascend", "CPU")


def dumps_tensors(call: str, device: str) -> bool:
    """True for a device whose graphs have TensorDump, false for one whose graphs call Python.

    Raises:
        MsprobeException: neither is known of the device.
    """
    if device not in _SAVING:
        known = " and ".join(_SAVING)
        raise MsprobeException(
            f"{call} was called in a graph that is being compiled for {device}; graphs for {known} can save (MindSpore "
            f"{ms.__version__}). Take it out of jit, or call {_PYNATIVE} first."
        )
    return device == "Ascend"


def _is_ascend(call: str) -> bool:
    """Runs while compiling; the compiler hands an error to the user as it is."""
    return dumps_tensors(call, str(ms.get_context("device_target")))


is_ascend = constexpr(_is_ascend)


def check_pynative() -> None:
    """Refuse to collect in graph mode.

    Raises:
        MsprobeException: graph mode is on.
    """
    if ms.get_context("mode") != ms.PYNATIVE_MODE:
        raise MsprobeException(
            "start: MindSpore is in graph mode, where collecting needs an Ascend device and is not available in this "
            f"version; call {_PYNATIVE} first."
        )
