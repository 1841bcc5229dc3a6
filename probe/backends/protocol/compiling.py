"""Modules run in their compiled form next to their eager one: `Execution.compilation` of an adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

from typing_extensions import Protocol

from probe.common.interfaces import Handle

Backend = Union[str, Callable[..., Any]]


class ModuleAt(NamedTuple):
    """A module of a model."""

    name: str
    """The path of the module, as ``layers.0.norm``; empty for the model itself."""
    depth: int
    """The number of modules that it is inside of."""
    module: Any


@dataclass(frozen=True)
class Part:
    """One tensor that a call of a module gave."""

    stage: str
    """``forward`` or ``backward``."""
    name: str
    """``output.0``, ``buffer running_mean``, ``gradient of input 0``, ``gradient of weight``."""
    tensor: Any
    """``None`` for a gradient that is not there."""


class CallListener(Protocol):
    """The callbacks of `Compilation.attach`."""

    def enter(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The module is about to be called."""

    def leave(self, tensors: Sequence[Any]) -> None:
        """A module returned these tensors, in the order of the forward parts of `KeptModule.eager`."""

    def failed(self, about: Any, error: Exception) -> None:
        """The tool itself failed; to be logged, and the program goes on."""


class KeptModule(Protocol):
    """A module as it was before a call, with what surrounded the call: autocast, and whether gradients are recorded.

    Every evaluation works on a copy of its own. Random numbers are drawn from where the generators are.
    """

    units: Optional[Sequence[tuple[str, float]]]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The operations that `eager` made, with the unit roundoff of what each returned; ``None`` before it."""

    def eager(self, given: Given) -> list[Part]:
        """The parts of the call as it was made."""

    def compiled(self, given: Given, backend: Backend, dump: Callable[[str], None] | None) -> list[Part]:
        """The parts of the call of the compiled module.

        Args:
            given: What it is called with.
            backend: Of the compiler.
            dump: Gets the text of each graph; ``None`` where nobody wants it.

        Raises:
            NothingCompiled: the compiler left the whole call to the framework.
        """

    def exact(self, given: Given, moved: int | None = None, least: float = 0.0) -> list[Part]:
        """The parts of the call in float64, casts inside included.

        Args:
            given: What it is called with, its tensors in float64.
            moved: The number of a draw by which each operation inside is moved by its unit roundoff, up or down.
            least: The unit by which everything is moved at least.
        """


@dataclass(frozen=True)
class Given:
    """The arguments of one call of a module."""

    bind: Callable[[Sequence[Any]], tuple[Sequence[Any], Mapping[str, Any]]]
    """Makes the arguments of `tensors`."""
    tensors: Sequence[Any]
    """The tensors among the arguments, which the call may write to."""
    differentiated: Sequence[int]
    """The indexes of those that take a gradient."""
    gradients: Sequence[Any]
    """The gradient of each tensor that it returns, ``None`` for one without; empty leaves the backward out."""


class NothingCompiled(Exception):
    """The compiler made no graph."""


class Compilation(Protocol):
    """Operations of a framework with a compiler of modules."""

    def check_backend(self, backend: Backend) -> None:
        """Refuse what is no backend of the compiler.

        Raises:
            MsprobeException: there is none of this name.
        """

    def dtype_name(self, dtype: Any) -> str:
        """The plain name of one of the framework's dtypes.

        Raises:
            MsprobeException: it is none, or none of floating-point numbers.
        """

    def modules(self, model: Any) -> list[ModuleAt]:
        """The model and every module inside, each once."""

    def attach(self, module: Any, listener: CallListener) -> Handle:
        """Report every call of `module`, with its arguments and the tensors that it returns, to `listener`."""

    def keep(self, module: Any) -> KeptModule:
        """A copy of `module` as it is now, without the hooks of anyone.

        Raises:
            Exception: whatever the framework raises for a module that cannot be copied.
        """

    def cast(self, kept: KeptModule, dtype: str) -> KeptModule:
        """A copy of the module with its parameters in another dtype."""
