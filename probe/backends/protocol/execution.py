"""One recorded call run alone: group `Execution` of an adapter."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional, Union

from typing_extensions import Protocol

from probe.common.interfaces import Handle

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


# --- scripts


class ScriptParts(NamedTuple):
    """The parts of a stand-alone script of one call; texts are Python."""

    title: str
    found: str
    """The observation for which it was written; like `title`, it is between the quotes of a docstring."""
    device: str
    definitions: str
    """``INPUTS``, a list; ``OF_OUTPUTS``, the gradients of some outputs; ``RECORDED``, results by name; and
    ``RANDOM_STATE``, what `Execution.restore_draws` takes on `device`. Those that there are."""
    needs_folder: bool
    """True if they name files by ``pathlib``."""
    dtypes: Sequence[str]
    """The dtypes of the inputs, plain names."""
    variables: Sequence[str]
    """The names of the inputs in `call`."""
    call: Callable[[str], str]
    """The call as a statement that begins with the given text, such as an indented ``output =``."""
    autocast: str
    """The dtype to which it is cast; empty without."""
    results: Sequence[tuple[str, str]]
    """Names and expressions of the tensors in ``output``."""
    with_gradients: Sequence[str]
    """The expressions of those to which ``OF_OUTPUTS`` belong, in that order; none without a backward."""
    differentiated: Sequence[tuple[str, int]]
    """The names of the gradients, and the places of their inputs."""
    has_recorded: bool
    has_random_state: bool


class ScriptWords(Protocol):
    """The way in which a script that imports nothing but the framework spells a recorded call."""

    SUFFIX: str
    """The suffix of files of tensors."""

    def spelled(self, base: str, attributes: Mapping[str, Any] | None, called: str = "") -> str | None:
        """``torch.nn.functional.silu``, or for a method ``torch.Tensor.add_``; ``None`` where it has no name.

        Args:
            base: The name in records.
            attributes: What a primitive was made with; ``None`` of a function.
            called: The full name of the function, where `base` is the name of another one.
        """

    def plain(self, entry: Mapping[str, Any]) -> str:
        """The result of `Execution.plain_value` for an entry; the device is ``device``, a dtype goes through ``kind``.

        Raises:
            UnknownValue: it cannot be made from what the dump says.
        """

    def inline(self, numbers: str, dtype: str) -> str:
        """A tensor of nested lists."""

    def loaded(self, path: str, dtype: str) -> str:
        """A tensor from the file at `path`, which is an expression."""

    def content(self, values: NDArray[Any], dtype: str) -> bytes:
        """The bytes of that file."""

    def script(self, parts: ScriptParts) -> str:
        """The script: it runs the call on a device and exactly, and prints the worst element of each result."""


# --- execution


class UnknownValue(Exception):
    """An entry of a record stands for nothing that this framework can make, in words for the user."""


class OperatorListener(Protocol):
    """The callbacks of `Execution.attach_operators`."""

    def enter_operator(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """`function`, which computes something without drawing, is about to run; ``None`` if it is of no interest.

        Args:
            name: As ``Aten.mul.Tensor``.
        """

    def leave_operator(self, entered: Any, output: Any) -> None:
        """Note that an operator returned; `entered` is what `enter_operator` gave for its call."""

    def failed(self, about: Any, error: Exception) -> None:
        """The tool itself failed; to be logged, and the program goes on."""


class Evaluated(Protocol):
    """One call that was run."""

    output: Any
    """The returned value of the function, with tensors of the framework inside."""

    @property
    def are_gradients_recorded(self) -> bool:
        """True if a record of the call has the gradients of its inputs, and not of what it makes of them first."""

    def gradients(self, output_gradients: Sequence[Any]) -> list[Any]:
        """The gradients of the differentiated inputs, ``None`` for one on which nothing depends.

        Args:
            output_gradients: One for each tensor in `output`, in the order in which `found_in` finds them, of its shape
                and dtype; ``None`` for one that takes no part.
        """


class Execution(Protocol):
    """Running one recorded call alone.

    Values come as numpy arrays and go back as such. A dtype that numpy lacks is held in float32, which has all its
    values. Dtypes go by their plain names: ``bfloat16``, ``int64``, ``bool``.
    """

    script: ScriptWords
    """The way in which a script spells the call."""
    compilation: Compilation | None
    """Modules in their compiled form next to their eager one; ``None`` where the framework compiles none."""
    differentiates_anywhere: bool
    """True if `evaluate` may be asked for gradients while the program records some of its own."""

    def function(
        self, base: str, attributes: Mapping[str, Any] | None = None, called: str = ""
    ) -> Callable[..., Any] | None:
        """The function that ``Prefix.api`` calls now; ``None`` for a name that this framework does not have.

        It is looked up anew each time, in the lists of what can be captured. A primitive of MindSpore is made anew.

        Args:
            attributes: What the record says a primitive was made with; ``None`` where it says nothing.
            called: The full name of the function, where `base` is the name of another one.

        Raises:
            UnknownValue: a primitive cannot be made from what the record says.
        """

    def reference_function(
        self, base: str, attributes: Mapping[str, Any] | None = None, called: str = ""
    ) -> Callable[..., Any] | None:
        """A float64 version on the CPU of a function that has no kernel there; ``None`` if it has one."""

    def is_tensor(self, value: Any) -> bool:
        """True if `value` is a tensor of this framework."""

    def tensor(self, values: NDArray[Any], dtype: str, device: str) -> Any:
        """A new tensor of that shape, rounded to `dtype`, which shares no memory with `values`.

        Raises:
            UnknownValue: there is no such dtype.
        """

    def values(self, tensor: Any) -> NDArray[Any]:
        """The values on the host, exactly."""

    def dtype_name(self, tensor: Any) -> str:
        """The plain name of its dtype."""

    def device_name(self, tensor: Any) -> str:
        """The device, in the words of `devices`."""

    def copied(self, tensor: Any) -> Any:
        """A tensor of its own with the values, the dtype, the device and, as far as that can be, the memory layout.

        It takes no gradient.
        """

    def plain_value(self, entry: Mapping[str, Any], device: str) -> Any:
        """The value of an entry of a framework's own type, a dtype for example; a device becomes `device`.

        Raises:
            UnknownValue: it cannot be made from what the dump says.
        """

    def evaluate(
        self, function: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], differentiated: Sequence[int]
    ) -> Evaluated:
        """Call `function` with `inputs`, which it may write to.

        Args:
            function: Takes tensors in the order of `inputs`, and returns what the recorded function returns.
            inputs: Tensors that `tensor` made, each for this call.
            differentiated: Which of `inputs` gradients are asked for; without any, none is recorded.
        """

    def autocast(self, dtype: str, device: str) -> contextlib.AbstractContextManager[None]:
        """Calls inside run as under the framework's autocast to `dtype`.

        Raises:
            UnknownValue: the framework has none.
        """

    def rounding_inside(self, unit: float, seed: int) -> contextlib.AbstractContextManager[None]:
        """Move all that calls and gradients compute inside by `unit`, relative to itself, up or down by `seed`.

        A framework that does not show what is inside of its functions moves nothing.
        """

    def devices(self) -> Sequence[str]:
        """The devices that are there, an accelerator first: ``["cuda:0", "cpu"]``."""

    def restore_draws(self, state: NDArray[Any], device: str) -> bool:
        """Let the next call on `device` draw what followed when `random_state` gave `state`; false where it cannot."""

    def seed_draws(self, seed: int) -> None:
        """Let random calls of this process draw the same numbers again, on every device."""

    def random_states(self) -> Any:
        """The state of the generators of the framework."""

    def set_random_states(self, states: Any) -> None:
        """Bring them back to where `random_states` found them."""

    def attach_operators(self, listener: OperatorListener) -> Handle | None:
        """Report every operator that runs on this thread, those of a backward too; ``None`` where there is no way.

        What only hands on its argument, or another view of it, is not reported.
        """

    def one_thread(self) -> contextlib.AbstractContextManager[None]:
        """Compute with one thread inside, so that results do not depend on how many processes share the work.

        A framework that takes the number once keeps it.
        """
