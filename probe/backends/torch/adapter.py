"""The PyTorch adapter."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from probe.backends.protocol import (
    Execution,
    FrameworkAdapter,
    Hooks,
    Randomness,
    Replaying,
    Settings,
    Tensors,
    Training,
    Trends,
)
from probe.backends.torch import internals
from probe.backends.torch import randomness as seeding
from probe.backends.torch import settings as framework_settings
from probe.backends.torch.hooks import training_hooks
from probe.backends.torch.hooks.group import TorchHooks
from probe.backends.torch.randomness import rank
from probe.backends.torch.tensors.describe import TorchTensors
from probe.common.dump.frameworks import FRAMEWORKS


class TorchAdapter:
    """Implements `probe.backends.protocol.FrameworkAdapter` for PyTorch on CPU, CUDA and NPU."""

    framework = FRAMEWORKS["torch"].recorded
    absent = internals.absent_text()
    rank = staticmethod(rank)
    randomness: Randomness = seeding
    training: Training | None = training_hooks
    settings: Settings | None = framework_settings

    def __init__(self) -> None:
        self.tensors: Tensors = TorchTensors()
        self.hooks: Hooks = TorchHooks()

    # A program that is dumped uses none of the following groups, and imports none.

    @cached_property
    def execution(self) -> Execution | None:
        from probe.backends.torch.execution import group

        return group

    @cached_property
    def trends(self) -> Trends | None:
        from probe.backends.torch import trends as group

        return group

    @cached_property
    def replaying(self) -> Replaying | None:
        from probe.backends.torch.step_keeper import TorchStepKeeper

        return TorchStepKeeper


if TYPE_CHECKING:
    # The loader finds the class by name, so this is where a missing method shows.
    _fulfils: FrameworkAdapter = TorchAdapter()
