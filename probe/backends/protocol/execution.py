"""One recorded call run alone: group `Execution` of an adapter."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

from typing_extensions import Protocol

from probe.backends.protocol.compiling import Compilation
from probe.backends.protocol.scripts import ScriptWords
from probe.common.interfaces import Handle

if TYPE_CHECKING:
    # A training that is only collected from needs no numpy.
    from numpy.typing import NDArray


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

    def gradients(self, of_outputs: Sequence[Any]) -> list[Any]:
        """The gradients of the differentiated inputs, ``None`` for one on which nothing depends.

        Args:
            of_outputs: One for each tensor in `output`, in the order in which `found_in` finds them, of its shape and
                dtype; ``None`` for one that takes no part.
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
