"""What a deep-learning framework must offer to be collected from.

Seven groups: `Tensors` (declared with the shared code, which is its only caller), `Hooks`, `Randomness`, `Watching`
and `Replaying`, which task ``overflow_check`` needs, `Execution`, which the pre-check needs, and `TrainingHooks`, which
only a program that is run by ``msprobe run`` needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from typing_extensions import Protocol

from probe.common.interfaces import Handle, Listener, ModuleName, RandomCall, Tensors

if TYPE_CHECKING:
    # A training that is only collected from needs no numpy.
    from numpy.typing import NDArray


class ModuleHandles(NamedTuple):
    """The hooks on modules. Gradients may arrive when the forward is no longer hooked."""

    forward: Handle
    gradients: Handle


class OperatorListener(Protocol):
    """The callbacks of `Hooks.attach_operators`."""

    def enter_operator(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """`function`, which computes something without drawing, is about to run; ``None`` if it is of no interest.

        Args:
            name: As ``Aten.mul.Tensor``.
        """

    def leave_operator(self, entered: Any, output: Any) -> None:
        """It returned; `entered` is what `enter_operator` gave."""

    def failed(self, about: Any, error: Exception) -> None:
        """The tool itself failed; to be logged, and the program goes on."""


class Hooks(Protocol):
    """Hooks that report what a user's program does. Every handle puts everything back exactly as it was."""

    def attach_apis(self, models: Any, listener: Listener) -> Handle:
        """Report every watched function to `listener`, those that `models` (or ``None``) hold included."""

    def attach_custom_api(self, owner: Any, attribute: str, prefix: str, listener: Listener) -> Handle:
        """Watch one function of the user's choice, recorded as ``prefix.attribute``."""

    def attach_operators(self, listener: OperatorListener) -> Handle | None:
        """Report every operator that runs on this thread, those of a backward too; ``None`` where there is no way.

        What only hands on its argument, or another view of it, is not reported.
        """

    def attach_modules(self, models: Any, listener: Listener) -> ModuleHandles:
        """Watch every module below `models`: one module, a list or tuple of them, or a mapping.

        The index in the list, or the key, begins the names.
        """

    def attach_module(self, module: Any, name: ModuleName, listener: Listener) -> ModuleHandles:
        """Watch one module under a given name."""

    def attach_optimizer_hooks(self, listener: Listener) -> Handle:
        """Report gradient clipping and the optimizer's step to `listener`."""

    def attach_passes(self, models: Any, begin: Callable[[], None], end: Callable[[], None]) -> Handle:
        """Call `begin` and `end` around every forward pass of the (first) model itself."""

    def attach_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Handle | None:
        """Call `callback` with every gradient of `tensor`; ``None`` when it takes none."""

    def finish_backward(self) -> None:
        """Report every module backward that is still open; called before a flush."""

    def end_step(self) -> None:
        """Forget what was kept for the gradients of the step that is over."""

    def is_module(self, value: Any) -> bool: ...

    def class_name(self, module: Any) -> str:
        """The class as it stands in record names."""


class Randomness(Protocol):
    """Ways to make two runs draw the same numbers."""

    def seed_everything(self, seed: int, deterministic: bool) -> None: ...

    def remove_dropout(self) -> Handle: ...

    def fix_random_calls(self) -> Handle: ...

    def random_calls(self) -> Sequence[RandomCall]:
        """The functions and tensor methods that draw random numbers."""


class TrainingListener(Protocol):
    """The callbacks of `TrainingHooks`. No method raises."""

    def enter_forward(self, module: Any, recording: bool) -> None:
        """A module is called that no other module's call is around; `recording` is whether gradients are recorded."""

    def leave_forward(self) -> None:
        """It returned or raised."""

    def enter_backward(self, mark: Callable[[Any], object]) -> None:
        """Gradients are about to be computed.

        What `mark` returns for an optimizer differs from what the `mark` of `leave_backward` returns if gradients of
        its parameters are computed in between.
        """

    def leave_backward(self, mark: Callable[[Any], object] | None) -> None:
        """Gradients were computed; ``None``: computing them raised."""

    def return_gradients(self, *kept: object) -> None:
        """Gradients were computed and returned to the program.

        If one of `kept` is true, something else may be computed of them or of their graph with gradients.
        """

    def new_optimizer(self) -> None:
        """An optimizer was made, or one that was saved was loaded."""

    def leave_optimizer(self, optimizer: Any) -> None:
        """An optimizer has updated its parameters, or its gradient scaler has passed it over."""


class TrainingHooks(Protocol):
    """How a program trains, seen from outside of its script."""

    def attach_training(self, listener: TrainingListener) -> Handle:
        """Report to `listener` until the handle is removed."""

    def attach_gradients(self, listener: TrainingListener) -> Handle:
        """Call `return_gradients` of `listener` until the handle is removed."""

    def outermost(self, module: Any) -> Any:
        """The module that holds `module`, directly or not, and is held by none: the model it is a part of."""

    def inside(self, module: Any) -> Sequence[Any]:
        """The modules inside of `module`, itself not among them."""

    def has_parameters(self, module: Any) -> bool:
        """Whether `module` or a module inside of it has a parameter."""

    def trainable(self, module: Any) -> frozenset[int]:
        """The identities of the parameters of `module` that get gradients now."""

    def optimizers(self) -> Sequence[Any]:
        """Every optimizer that there is."""

    def parameters(self, optimizer: Any) -> frozenset[int]:
        """The identities of the parameters that `optimizer` updates."""


class ScaledUpdate(NamedTuple):
    """What a gradient scaler made of one optimizer's step. Both read from a device where that is where they are."""

    was_skipped: Callable[[], bool]
    scale: Callable[[], float]


class Watching(Protocol):
    """What watching a training needs besides."""

    def attach_scalers(self, note: Callable[[ScaledUpdate], None]) -> Handle:
        """Tell `note` of every optimizer's step that goes through a gradient scaler."""

    def largest_over_ranks(self, numbers: Sequence[int]) -> list[int]:
        """The largest of each of `numbers` over all ranks of the default process group, in one communication.

        Every rank calls it as often as the others; without a group it gives the numbers back.
        """


class ReplayError(Exception):
    """Why a step cannot be run again, in words for the log."""


class KeptStep(Protocol):
    """What is kept of one step, to run the forward and the backward of its models again."""

    models: Any
    """As they were given to `StepKeeper.attach`; ``None`` if nothing was."""
    left_out: int
    """Calls of the models that are not kept, since there were too many."""

    def undone(self) -> contextlib.AbstractContextManager[None]:
        """Whatever is done to the models inside, afterwards they and the random states are what they were, bitwise."""

    def run_again(self, begin: Callable[[Mapping[str, int]], None]) -> None:
        """Call the models again and run the backward; `begin` gets before each call what was noted when it was kept.

        Raises:
            ReplayError: it cannot be done.
        """

    def forget(self) -> None:
        """Free all of it."""


class StepKeeper(Protocol):
    """Keeps of each step what it needs to be run again."""

    def attach(self, models: Any) -> Handle:
        """Keep the calls of `models` until the handle is removed, and the gradients that come to their outputs.

        Raises:
            ReplayError: calls of these models cannot be run again.
        """

    def take(self) -> KeptStep:
        """What was kept since the last time."""

    def forget(self) -> None:
        """Keep nothing of what was kept since the last time."""


class Replaying(Protocol):
    """What running a step again needs."""

    def step_keeper(
        self,
        with_parameters: bool,
        numbers: Callable[[], Mapping[str, int]],
        failed: Callable[[str, BaseException], None],
    ) -> StepKeeper | None:
        """What keeps steps, with parameters and buffers if so; ``None`` where the framework cannot.

        Args:
            with_parameters: Whether parameters and buffers are kept too.
            numbers: Asked when a call begins; `KeptStep.run_again` gives the answer back.
            failed: Called with a text and the error when something fails.
        """


class UnknownValue(Exception):
    """An entry of a record stands for nothing that this framework can make, in words for the user."""


class Evaluated(Protocol):
    """One call that was run."""

    output: Any
    """What the function returned, tensors of the framework inside."""

    @property
    def are_gradients_recorded(self) -> bool:
        """Whether a record of the call has the gradients of its inputs, and not of what it makes of them first."""

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

    differentiates_anywhere: bool
    """Whether `evaluate` may be asked for gradients while the program records some of its own."""

    def function(self, base: str, attributes: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        """What ``Prefix.api`` calls now; ``None`` for a name that this framework does not have.

        It is looked up anew each time, in the lists of what can be captured. A primitive of MindSpore is made anew.

        Args:
            attributes: What the record says a primitive was made with; ``None`` where it says nothing.

        Raises:
            UnknownValue: a primitive cannot be made from what the record says.
        """

    def reference_function(self, base: str, attributes: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        """What computes in float64 on the CPU what `function` has no kernel for there; ``None`` where it has one."""

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
        """Where it is, in the words of `devices`."""

    def copied(self, tensor: Any) -> Any:
        """A tensor of its own with the values, the dtype, the device and, as far as that can be, the memory layout.

        It takes no gradient.
        """

    def plain_value(self, entry: Mapping[str, Any], device: str) -> Any:
        """What the entry of a framework's own value stands for, such as a dtype or a size; a device becomes `device`.

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
        """What calls and gradients compute inside is moved by `unit` of itself, up or down as drawn from `seed`.

        A framework that does not show what is inside of its functions moves nothing.
        """

    def devices(self) -> Sequence[str]:
        """The devices that are there, an accelerator first: ``["cuda:0", "cpu"]``."""

    def restore_draws(self, state: NDArray[Any], device: str) -> bool:
        """Let the next call on `device` draw what followed when `random_state` gave `state`; false where it cannot."""

    def seed_draws(self, seed: int) -> None:
        """Let random calls of this process draw the same numbers again, on every device."""

    def random_states(self) -> Any:
        """Where the framework's generators stand."""

    def set_random_states(self, states: Any) -> None:
        """Bring them back to where `random_states` found them."""

    def one_thread(self) -> contextlib.AbstractContextManager[None]:
        """Compute with one thread inside, so that results do not depend on how many processes share the work.

        A framework that takes the number once keeps it.
        """


class ScriptParts(NamedTuple):
    """What a stand-alone script of one call is made of; texts are Python."""

    title: str
    found: str
    """What was seen when it was written; as `title`, as it stands between the quotes of a docstring."""
    device: str
    definitions: str
    """``INPUTS``, a list; ``OF_OUTPUTS``, the gradients of some outputs; ``RECORDED``, results by name; and
    ``RANDOM_STATE``, what `Execution.restore_draws` takes on `device`. Those that there are."""
    needs_folder: bool
    """Whether they name files by ``pathlib``."""
    dtypes: Sequence[str]
    """Those of the inputs, plain names."""
    variables: Sequence[str]
    """The names of the inputs in `call`."""
    call: Callable[[str], str]
    """The call as a statement that begins with the given text, such as an indented ``output =``."""
    autocast: str
    """The dtype to which it is cast; empty without."""
    results: Sequence[tuple[str, str]]
    """Names and expressions of the tensors in ``output``."""
    of_outputs: Sequence[str]
    """The expressions of those to which ``OF_OUTPUTS`` belong, in that order; none without a backward."""
    differentiated: Sequence[tuple[str, int]]
    """The names of the gradients, and the places of their inputs."""
    has_recorded: bool
    has_random_state: bool


class ScriptWords(Protocol):
    """How a script that imports nothing but the framework spells a recorded call."""

    SUFFIX: str
    """Of the files of tensors."""

    def spelled(self, base: str, attributes: Mapping[str, Any] | None) -> str | None:
        """``torch.nn.functional.silu``, or for a method ``torch.Tensor.add_``; ``None`` where it has no name.

        Args:
            base: The name in records.
            attributes: What a primitive was made with; ``None`` of a function.
        """

    def plain(self, entry: Mapping[str, Any]) -> str:
        """What `Execution.plain_value` makes of an entry; the device is ``device``, a dtype goes through ``kind``.

        Raises:
            UnknownValue: it cannot be made from what the dump says.
        """

    def inline(self, numbers: str, dtype: str) -> str:
        """A tensor of nested lists."""

    def loaded(self, path: str, dtype: str) -> str:
        """A tensor from the file at `path`, which is an expression."""

    def content(self, values: NDArray[Any], dtype: str) -> bytes:
        """That file."""

    def script(self, parts: ScriptParts) -> str:
        """The script: it runs the call on a device and exactly, and prints the worst element of each result."""


class FrameworkAdapter(Tensors, Hooks, Randomness, Watching, Replaying, Execution, Protocol):
    """One framework."""

    training: TrainingHooks
    script: ScriptWords
    absent: str
    """One line on parts of the framework that this release lacks, and which features that costs; empty without any."""
