"""Settings of a framework while a program runs: group `Settings` of an adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from typing_extensions import Protocol

from probe.common.environment.gathered import FrameworkFacts
from probe.common.environment.modules import ModuleSettings
from probe.common.interfaces import Handle, RandomCall


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
