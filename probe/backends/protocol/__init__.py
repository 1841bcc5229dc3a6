"""A deep-learning framework as this tool needs it: `FrameworkAdapter`, in groups.

Each group is a small protocol in a file of its own, and each backend gives one object for it, a module or an instance
of a class. `Tensors`, `Hooks` and `Randomness` are the adapter: with them a program is dumped, and its dumps compared
and searched for overflow. The other groups are optional. A caller takes the group that it needs: what runs a recorded
call again takes `Execution` and no adapter.
"""

from __future__ import annotations

from typing import TypeVar

from typing_extensions import Protocol

from probe.backends.protocol.core import HeldTensor, Hooks, ModuleHandles, Randomness, Source, Tensors
from probe.backends.protocol.execution import (
    Compilation,
    Evaluated,
    Execution,
    OperatorListener,
    ScriptParts,
    ScriptWords,
    UnknownValue,
)
from probe.backends.protocol.training import (
    AfterUpdate,
    AroundScaled,
    BeforeUpdate,
    DescribedModule,
    KeptStep,
    OptimizedParameter,
    ReplayError,
    Replaying,
    ScaledUpdate,
    Settings,
    StepKeeper,
    Training,
    TrainingListener,
)
from probe.backends.protocol.trends import (
    OPS,
    CommunicationListener,
    Measured,
    Measurer,
    Signature,
    Sketched,
    SpectralNorms,
    Trends,
)
from probe.common.errors import FrameworkError

__all__ = [
    "OPS",
    "AfterUpdate",
    "AroundScaled",
    "BeforeUpdate",
    "CommunicationListener",
    "Compilation",
    "DescribedModule",
    "Evaluated",
    "Execution",
    "FrameworkAdapter",
    "HeldTensor",
    "Hooks",
    "KeptStep",
    "Measured",
    "Measurer",
    "ModuleHandles",
    "OperatorListener",
    "OptimizedParameter",
    "Randomness",
    "ReplayError",
    "Replaying",
    "ScaledUpdate",
    "ScriptParts",
    "ScriptWords",
    "Settings",
    "Signature",
    "Sketched",
    "Source",
    "SpectralNorms",
    "StepKeeper",
    "Tensors",
    "Training",
    "TrainingListener",
    "Trends",
    "UnknownValue",
    "execution_of",
    "settings_of",
    "training_of",
    "trends_of",
]


class FrameworkAdapter(Protocol):
    """One framework."""

    framework: str
    """The name of the framework in dump.json."""
    absent: str
    """One line on parts of the framework that this release lacks, and which features that costs; empty without any."""

    def rank(self) -> int | None:
        """The rank of the initialised default process group, else ``None``."""

    tensors: Tensors
    """Tensors and other values described, their statistics, and their files."""
    hooks: Hooks
    """Calls of modules and functions reported, with their gradients."""
    randomness: Randomness
    """Seeds, dropout, and the state from which a call draws."""

    # What follows is ``None`` where a framework does not have it.

    @property
    def execution(self) -> Execution | None:
        """One recorded call run alone, and how a script spells it."""

    training: Training | None
    """Steps, optimizers and gradient scalers of a running program."""
    settings: Settings | None
    """Versions, switches, seeds and hyper-parameters of a running program."""

    @property
    def trends(self) -> Trends | None:
        """Values of models and optimizers that a monitor reads."""

    @property
    def replaying(self) -> Replaying | None:
        """A step kept and run again."""


_Group = TypeVar("_Group")


def _given(adapter: FrameworkAdapter, group: _Group | None, purpose: str) -> _Group:
    """`group`, where the backend has it.

    Raises:
        FrameworkError: it has not.
    """
    if group is None:
        raise FrameworkError(f"the backend of {adapter.framework} cannot {purpose}, which this needs.")
    return group


def execution_of(adapter: FrameworkAdapter) -> Execution:
    """Group `Execution`, or a `FrameworkError`."""
    return _given(adapter, adapter.execution, "run a recorded call alone")


def training_of(adapter: FrameworkAdapter) -> Training:
    """Group `Training`, or a `FrameworkError`."""
    return _given(adapter, adapter.training, "follow how a program trains")


def settings_of(adapter: FrameworkAdapter) -> Settings:
    """Group `Settings`, or a `FrameworkError`."""
    return _given(adapter, adapter.settings, "read the settings of a running program")


def trends_of(adapter: FrameworkAdapter) -> Trends:
    """Group `Trends`, or a `FrameworkError`."""
    return _given(adapter, adapter.trends, "measure the values that a monitor reads")
