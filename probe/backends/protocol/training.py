"""Three optional groups of an adapter, for a training that runs: `Training`, `Settings` and `Replaying`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from typing_extensions import Protocol

from probe.common.environment.environment_file import ModuleSettings
from probe.common.environment.gathered import FrameworkFacts
from probe.common.interfaces import Handle, RandomCall


class TrainingListener(Protocol):
    """The callbacks of `Training`. No method raises."""

    def enter_forward(self, module: Any, recording: bool) -> None:
        """A module is called that no other module's call is around; `recording` is whether gradients are recorded."""

    def leave_forward(self) -> None:
        """A forward returned or raised."""

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


class ScaledUpdate(NamedTuple):
    """The result of a gradient scaler for one optimizer's step. Both fields are read from the device, if there."""

    was_skipped: Callable[[], bool]
    scale: Callable[[], float]


class Training(Protocol):
    """The way in which a program trains, seen from outside of its script."""

    def attach_training(self, listener: TrainingListener) -> Handle:
        """Report to `listener` until the handle is removed."""

    def attach_gradients(self, listener: TrainingListener) -> Handle:
        """Call `return_gradients` of `listener` until the handle is removed."""

    def outermost(self, module: Any) -> Any:
        """The module that holds `module`, directly or not, and is held by none: the model it is a part of."""

    def inside(self, module: Any) -> Sequence[Any]:
        """The modules inside of `module`, itself not among them."""

    def has_parameters(self, module: Any) -> bool:
        """True if `module` or a module inside of it has a parameter."""

    def trainable(self, module: Any) -> frozenset[int]:
        """The identities of the parameters of `module` that get gradients now."""

    def optimizers(self) -> Sequence[Any]:
        """Every optimizer that there is."""

    def parameters(self, optimizer: Any) -> frozenset[int]:
        """The identities of the parameters that `optimizer` updates."""

    def attach_scalers(self, note: Callable[[ScaledUpdate], None]) -> Handle:
        """Tell `note` of every optimizer's step that goes through a gradient scaler."""

    def largest_over_ranks(self, numbers: Sequence[int]) -> list[int]:
        """The largest of each of `numbers` over all ranks of the default process group, in one communication.

        Every rank calls it as often as the others; without a group it gives the numbers back.
        """


# --- settings


class DescribedModule(NamedTuple):
    """A module that was described."""

    name: str
    """The part of its name that all its records share."""
    settings: ModuleSettings
    """Without buffers."""
    buffers: Mapping[str, Any]
    """The tensors themselves that are no parameters."""
    states: frozenset[str]
    """The names of those that are saved with the parameters."""


class OptimizedParameter(NamedTuple):
    """A parameter of an optimizer, before or after a step of it."""

    group: int
    """The index of its group in `Settings.optimizer_groups`."""
    name: str
    """The name that the optimizer itself has for it; empty where it has none."""
    value: Any
    gradient: Any
    """The gradient that the optimizer takes; ``None`` if there is none, or before a step that computes it itself."""
    state_step: Any
    """The steps that the optimizer has counted for it: a number, a tensor of one element, or ``None``."""


OptimizedParameters = Callable[[], Sequence[OptimizedParameter]]
BeforeUpdate = Callable[[Any, OptimizedParameters], None]
"""Called with an optimizer that is about to update its parameters."""
AfterUpdate = Callable[[Any, OptimizedParameters, Any], None]
"""Called when it has done so; the last argument is a tensor, not 0 if it has skipped the update itself, or ``None``."""
AroundScaled = Callable[[Any, bool], None]
"""Called with an optimizer before (true) and after a gradient scaler lets it update parameters, or skips that."""


class Settings(Protocol):
    """Settings that change numbers, read without changing anything. No method starts a device."""

    def facts(self) -> FrameworkFacts:
        """The versions, switches and random states of this process."""

    def attach_updates(
        self, before: BeforeUpdate, after: AfterUpdate | None = None, scaled: AroundScaled | None = None
    ) -> Handle:
        """Report the steps of all optimizers, until the handle is removed, but not inside of `before`.

        If it is removed before an update ends, `after` is not called.
        """

    def optimizer_groups(self, optimizer: Any) -> Sequence[Mapping[str, Any]]:
        """The hyper-parameters of each parameter group, with plain values, and the number of its parameters."""

    def model_settings(self, model: Any) -> Mapping[str, Any]:
        """Options of modules that change numbers, such as ``p`` of dropout, by module name and option.

        Also the number of parameters by dtype, as ``parameters.float32``.
        """

    def modules(self, models: Any) -> Sequence[DescribedModule]:
        """The settings of every module of `models`, which are given as in `Hooks.attach_modules`.

        The names are those of records. A model of another framework, or ``None``, has none.
        """

    def weights(self, model: Any) -> Sequence[tuple[str, Any]]:
        """The parameters with their names, in the order of the model."""

    def attach_inputs(self, model: Any, note: Callable[[Sequence[Any], Mapping[str, Any]], None]) -> Handle:
        """Tell `note` of the arguments of each call of `model`, before it runs.

        The handle may be removed inside of `note`.
        """

    def seeding_calls(self) -> Sequence[RandomCall]:
        """The functions of the framework that set a seed."""


# --- replaying


class ReplayError(Exception):
    """The reason why a step cannot be run again, in words for the log."""


class KeptStep(Protocol):
    """One step that was kept, to run the forward and the backward of its models again."""

    models: Any
    """The models as they were given to `StepKeeper.attach`; ``None`` if there were none."""
    left_out: int
    """Calls of the models that are not kept, since there were too many."""

    def undone(self) -> contextlib.AbstractContextManager[None]:
        """Restore the models and the random states afterwards, bitwise, whatever is done to the models inside."""

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
        """The steps that were kept since the last call."""

    def forget(self) -> None:
        """Keep nothing of what was kept since the last time."""


Replaying = Callable[[bool, Callable[[], Mapping[str, int]], Callable[[str, BaseException], None]], StepKeeper]
"""Makes the object that keeps steps.

Its arguments: True if parameters and buffers are kept too; a function that is asked when a call begins, whose answer
`KeptStep.run_again` gives back; and one that is called with a text and the error when something fails.
"""
