"""The plain data between the shared code and a backend, and what a backend reports to.

A backend never decides what is collected: it reports to the `Listener` what happens and describes tensors on request.
Names, selection, order and files belong to the shared code. The whole of a backend is
``probe.backends.protocol.FrameworkAdapter``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional

from typing_extensions import Protocol, TypeAlias

Entry: TypeAlias = dict[str, Any]
"""One value in its dump.json form."""


@dataclass(frozen=True)
class ApiName:
    """A function the backend watches: `base` is ``Prefix.api``, `api` the attribute name alone."""

    base: str
    api: str
    filled: tuple[Any, ...] = ()
    """Positions and keywords of arguments that only the call fills; they are ``null`` among its inputs."""
    known_before: Optional[Callable[[Any], Any]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """Makes of an argument what of it is an input, where the call fills a part of it."""
    returns_arguments: bool = False
    """The output of the record is the arguments after the call (collective communication)."""
    attributes: Optional[Entry] = field(default=None, compare=False)  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The arguments that the function was made with rather than called with, such as the epsilon of a primitive of
    MindSpore."""
    deciding: Optional[Entry] = field(default=None, compare=False)  # noqa: UP045
    """Attributes among `attributes` that decide values where neither inputs nor outputs show it."""
    function: str = field(default="", compare=False)
    """The full name of the function, such as ``torch.linalg.svd``, where `base` is the name of another one."""


@dataclass(frozen=True)
class ModuleName:
    """A module under the name it was given in `start`: `base` is ``Root.path.Class``."""

    base: str


@dataclass(frozen=True)
class StatisticsMode:
    """The statistics to compute of every tensor. `mode` is ``statistics``, ``md5`` or ``xor``."""

    mode: str = "statistics"
    high_precision: bool = False
    nonfinite: bool = False
    """True if tensors that hold NaN or infinities say how many, and which finite values they have; not with ``xor``."""
    sketch: bool = False
    """True if the entry of a tensor has its sketch, as `probe.common.numerics.sketch.Sketch.packed` gives it."""


@dataclass(frozen=True)
class TensorFile:
    """The content of a file that holds one tensor: `head`, `data` and `tail`, one after the other."""

    suffix: str
    """The framework's own, such as ``.pt``."""
    head: bytes
    """The bytes before the elements. Files of equal heads and data have equal tails."""
    data: memoryview
    """The elements in row-major order, as bytes."""
    tail: bytes
    crc: int
    """CRC-32 of `data`."""

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.head) + self.data.nbytes + len(self.tail)


MOST_ON_DEVICE = 1 << 26
"""Bytes of values that are copied on a device before they are read in one transfer, 64 MiB; a guess."""


@dataclass(frozen=True)
class DeviceFile:
    """The file of a tensor of which a device keeps a copy, of at most `MOST_ON_DEVICE` bytes."""

    suffix: str
    size: int
    """Bytes of the elements."""
    values: Any
    """The copy, for `read`."""
    read: Callable[[Sequence[DeviceFile]], list[TensorFile]]
    """Reads several, with one transfer from each device."""


class Handle(Protocol):
    """Something attached; `remove` puts everything back exactly as it was and may be called twice."""

    def remove(self) -> None: ...


class Logs(Protocol):
    """Receiver of failures of the tool itself, which must not reach the user's program."""

    def failed(self, about: Any, error: Exception) -> None:
        """The tool failed at `about`."""


class Listener(Protocol):
    """The callbacks of a backend. No method raises, none changes a value.

    For a call that is not wanted `enter_api` and `enter_module` return ``None``, and nothing more of it is reported.
    """

    def enter_api(self, api: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A watched function is about to run. Returns the call, to be given back."""

    def leave_api(self, call: Any, output: Any) -> bool:
        """The call returned `output`; true if the caller should watch the call's backward."""

    def fail_api(self, call: Any) -> None:
        """The call raised."""

    def cancel_api(self, call: Any) -> None:
        """The call declined (``NotImplemented``): as if it had not been called."""

    def suspend_api(self, call: Any) -> None:
        """The call returned but works on in the background; its output is not known yet."""

    def update_api(self, call: Any, output: Any) -> None:
        """The background work of a suspended call has ended."""

    def backward_api(self, call: Any, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        """The gradients of its outputs and of its inputs, in the order of the gradient function."""

    def enter_module(self, module: ModuleName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A module's forward is about to run."""

    def leave_module(self, call: Any, output: Any, parameters: Mapping[str, Any]) -> bool:
        """The module returned; `parameters` are the module's own, ``None`` for one that it goes without."""

    def fail_module(self, call: Any, parameters: Mapping[str, Any]) -> None:
        """The module raised."""

    def enter_backward(self, call: Any, outputs: int, inputs: int) -> Any:
        """The first gradient of a module's output has arrived. Returns the backward call, ``None`` if unwanted.

        `outputs` and `inputs` are the numbers of output and input tensors that take a gradient.
        """

    def backward_gradient(self, call: Any, field: str, index: int, gradient: Any) -> None:
        """A gradient of the backward call: `field` is ``input`` (of an output tensor) or ``output`` (of an input)."""

    def leave_backward(self, call: Any) -> None:
        """The module's backward is complete. One that gets another gradient afterwards is left again."""

    def parameter_gradient(self, module: ModuleName, parameter: str, gradient: Any, owed: bool) -> None:
        """A gradient was accumulated into one of the module's own parameters, which now has `gradient`.

        `owed`: in a backward pass to which a recorded call of some module belongs.
        """

    def enter_optimizer(self, name: str) -> None:
        """Gradient clipping (``clip_grad``) or the optimizer's step (``optimizer``) begins."""

    def leave_optimizer(self, name: str) -> None: ...

    def failed(self, about: Any, error: Exception) -> None:
        """The backend itself failed at the call or module `about`; to be logged, and the training goes on."""


class LiveDivergence(NamedTuple):
    """The first divergence of a step from that of a golden run."""

    record: str
    """The call that diverges; empty if that cannot be told."""
    lines: tuple[str, ...]
    """The answer of ``msprobe compare`` on it."""


class JudgeStep(Protocol):
    """Compares a step with that of a golden run, as ``msprobe compare`` does; what it raises is logged."""

    def __call__(
        self, target: str, golden: str, before: tuple[str, str] | None, is_over: bool
    ) -> LiveDivergence | None:
        """The first divergence; ``None`` if there is none, or nobody can tell of a step that goes on.

        Args:
            target, golden: The folder of the process in both runs, or the files in it.
            before: The folders of the step before, whose optimizer has written the parameters of this one.
            is_over: The step is over, and its files are written; otherwise as much is compared as there is.
        """


class CallChecker(Protocol):
    """Checks the calls of functions while a program runs, each on its own.

    What it raises is logged. It changes no value of the program's, nor the random states.
    """

    def begin_step(self, step: int, rank: int | None, folder: str) -> None:
        """Step number `step` begins; what is found of it goes below `folder`.

        If nothing is called in it, it ends without `end_step`, and no file has been changed.
        """

    def resume_step(self, rank: int | None, folder: str) -> None:
        """The step goes on after a stop; the rank may be known now, and what was found so far moves to `folder`."""

    def enter(self, name: str, api: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The wanted call `name`, as ``Torch.sum.0``, is about to run; ``None`` if it is not checked."""

    def leave(self, entered: Any, output: Any) -> Any:
        """The call returned `output`; gives what `backward` is to be told, ``None`` if the backward does not matter.

        Args:
            entered: The value that `enter` gave.
        """

    def backward(self, left: Any, grad_output: Sequence[Any]) -> None:
        """The gradients of its outputs have arrived.

        Args:
            left: The value that `leave` gave.
        """

    def end_step(self) -> None: ...


def _never() -> bool:
    return False


class RandomCall(NamedTuple):
    """A function that draws random numbers: attribute `name` of `owner`, counted under `library`."""

    library: str
    owner: Any
    name: str
    compiling: Callable[[], bool] = _never
    """True if a compiler of the framework reads the caller, which shall see the function alone."""
    draws: Callable[..., bool] | None = None
    """True if a call with these arguments draws; ``None`` of a function that always does."""
