"""The MSAdapter adapter: torch's names and modules over MindSpore's tensors and gradients."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from probe.backends.mindspore import internals
from probe.backends.mindspore.describe import MindSporeTensors, describe_value
from probe.backends.mindspore.hooks.group import MindSporeHooks, Seen
from probe.backends.msadapter import hooks
from probe.backends.msadapter import randomness as seeding
from probe.backends.msadapter import settings as framework_settings
from probe.backends.msadapter.hooks import MODULES, torch_module
from probe.backends.msadapter.randomness import rank
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
from probe.backends.torch.tensors.framework_values import FrameworkValues
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.interfaces import Entry

_SEEN = Seen(MODULES, hooks.watched, hooks.risk_class, hooks.async_work_types)


class MSAdapterAdapter:
    """Implements `probe.backends.protocol.FrameworkAdapter` for the torch API on MindSpore (mindtorch)."""

    framework = FRAMEWORKS["msadapter"].recorded
    absent = internals.absent_text()
    rank = staticmethod(rank)
    randomness: Randomness = seeding
    training: Training | None = hooks
    settings: Settings | None = framework_settings
    # Gradients are MindSpore's.
    replaying: Replaying | None = None

    def __init__(self) -> None:
        of_torch = FrameworkValues(torch_module()).describe

        def values(value: Any, key: str | None) -> Entry | None:
            # A dtype is MindSpore's own, also under torch's name.
            return describe_value(value, key) or of_torch(value, key)

        self.tensors: Tensors = MindSporeTensors(values)
        self.hooks: Hooks = MindSporeHooks(_SEEN)

    # A program that is dumped uses neither of the following groups, and imports neither.

    @cached_property
    def execution(self) -> Execution | None:
        from probe.backends.msadapter import execution

        return execution

    @cached_property
    def trends(self) -> Trends | None:
        from probe.backends.msadapter.trends import MSAdapterTrends

        return MSAdapterTrends()


if TYPE_CHECKING:
    # The loader finds the class by name, so this is where a missing method shows.
    _fulfils: FrameworkAdapter = MSAdapterAdapter()
