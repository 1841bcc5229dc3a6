"""The MindSpore adapter, for dynamic graph."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from probe.backends.mindspore import internals
from probe.backends.mindspore import randomness as seeding
from probe.backends.mindspore import settings as framework_settings
from probe.backends.mindspore.describe import MindSporeTensors
from probe.backends.mindspore.hooks import training_hooks
from probe.backends.mindspore.hooks.group import MindSporeHooks
from probe.backends.mindspore.randomness import rank
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
from probe.common.dump.frameworks import FRAMEWORKS


class MindSporeAdapter:
    """Implements `probe.backends.protocol.FrameworkAdapter` for MindSpore on CPU, GPU and Ascend."""

    framework = FRAMEWORKS["mindspore"].recorded
    absent = internals.absent_text()
    rank = staticmethod(rank)
    randomness: Randomness = seeding
    training: Training | None = training_hooks
    settings: Settings | None = framework_settings
    # Gradients come of functional transformations of the whole step: no call has a backward of its own.
    replaying: Replaying | None = None

    def __init__(self) -> None:
        self.tensors: Tensors = MindSporeTensors()
        self.hooks: Hooks = MindSporeHooks()

    # A program that is dumped uses neither of the following groups, and imports neither.

    @cached_property
    def execution(self) -> Execution | None:
        from probe.backends.mindspore.execution import group

        return group

    @cached_property
    def trends(self) -> Trends | None:
        from probe.backends.mindspore.trends import MindSporeTrends

        return MindSporeTrends()


if TYPE_CHECKING:
    # The loader finds the class by name, so this is where a missing method shows.
    _fulfils: FrameworkAdapter = MindSporeAdapter()
