"""Code that runs in a compiled graph, and the answers that it gets there.

MindSpore compiles a function by reading its source, also the functions it calls. Ordinary Python with an effect, such
as writing a file, is left out of the graph without a word, so a function of ours that may be called in one has to
notice it while it is compiled.
"""

from __future__ import annotations

import mindspore as ms
from mindspore.ops import PrimitiveWithInfer, constexpr

from probe.common.errors import MsprobeException

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
