"""A deep-learning framework as this tool needs it: `FrameworkAdapter`, in groups.

Each group is a small protocol in a file of its own, and each backend gives one object for it, a module or an instance
of a class. A caller takes the group that it needs: what runs a recorded call again takes `Execution` and no adapter.
"""

from __future__ import annotations

from typing_extensions import Protocol

from probe.backends.protocol.compiling import Compilation
from probe.backends.protocol.execution import Evaluated, Execution, OperatorListener, UnknownValue
from probe.backends.protocol.hooks import HeldTensor, Hooks, ModuleHandles
from probe.backends.protocol.randomness import Randomness
from probe.backends.protocol.replaying import KeptStep, ReplayError, Replaying, StepKeeper
from probe.backends.protocol.scripts import ScriptParts, ScriptWords
from probe.backends.protocol.settings import (
    AfterUpdate,
    AroundScaled,
    BeforeUpdate,
    DescribedModule,
    OptimizedParameter,
    Settings,
)
from probe.backends.protocol.tensors import Tensors
from probe.backends.protocol.training import ScaledUpdate, Training, TrainingListener
from probe.backends.protocol.trends import (
    OPS,
    CommunicationListener,
    Measured,
    Measurer,
    Signature,
    SpectralNorm,
    Trends,
)

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
    "SpectralNorm",
    "StepKeeper",
    "Tensors",
    "Training",
    "TrainingListener",
    "Trends",
    "UnknownValue",
]


class FrameworkAdapter(Protocol):
    """One framework."""

    framework: str
    """Its name in dump.json."""
    absent: str
    """One line on parts of the framework that this release lacks, and which features that costs; empty without any."""

    tensors: Tensors
    """Tensors and other values described, their statistics, and their files."""
    hooks: Hooks
    """Calls of modules and functions reported, with their gradients."""
    randomness: Randomness
    """Seeds, dropout, and the state from which a call draws."""
    execution: Execution
    """One recorded call run alone, and how a script spells it."""
    training: Training
    """Steps, optimizers, gradient scalers and ranks of a running program."""
    settings: Settings
    """Versions, switches, seeds and hyper-parameters of a running program."""
    trends: Trends
    """Values of models and optimizers that a monitor reads."""
    replaying: Replaying | None
    """A step kept and run again; ``None`` where the framework gives no way to run a backward again."""
