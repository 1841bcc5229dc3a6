"""The MSAdapter adapter: torch's names and modules over MindSpore's tensors and gradients."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from probe.backends.mindspore.adapter import MindSporeAdapter
from probe.backends.msadapter import api_list, execution, random_calls, scalers, script, seeding, training_hooks
from probe.backends.msadapter.module_hooks import MODULES
from probe.backends.msadapter.torch_modules import torch_module
from probe.backends.protocol import FrameworkAdapter, ScriptWords, TrainingHooks
from probe.backends.shared.api_list import Watched
from probe.backends.shared.scalers import Note
from probe.backends.torch.tensors.framework_values import FrameworkValues
from probe.common.interfaces import Handle, RandomCall


class MSAdapterAdapter(MindSporeAdapter):
    """Implements `probe.backends.protocol.FrameworkAdapter` for the torch API on MindSpore (mindtorch)."""

    framework = "mindtorch"
    kind = MODULES
    training: TrainingHooks = training_hooks
    script: ScriptWords = script

    def __init__(self) -> None:
        super().__init__()
        of_torch, of_mindspore = FrameworkValues(torch_module()).describe, self.describe_value
        # A dtype is MindSpore's own, also under torch's name.
        self.describe_value = lambda value, key: of_mindspore(value, key) or of_torch(value, key)

    def risk_class(self, base: str) -> str:
        return api_list.risk_class(base)

    def attach_scalers(self, note: Note) -> Handle:
        return scalers.attach_scalers(note)

    def watched(self) -> dict[str, list[Watched]]:
        return api_list.watched()

    def async_work_types(self) -> list[type]:
        work = getattr(torch_module("distributed"), "Work", None)
        found = super().async_work_types()
        ahead = [work] if isinstance(work, type) else []
        while ahead:
            kind = ahead.pop()
            found.append(kind)
            ahead += kind.__subclasses__()
        return found

    def seed_everything(self, seed: int, deterministic: bool) -> None:
        seeding.seed_everything(seed, deterministic)

    def remove_dropout(self) -> Handle:
        return seeding.remove_dropout()

    def fix_random_calls(self) -> Handle:
        return seeding.fix_random_calls()

    def random_calls(self) -> Sequence[RandomCall]:
        return random_calls.random_calls()

    def function(self, base: str, attributes: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        return execution.function(base)

    def reference_function(self, base: str, attributes: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        return execution.reference_function(base)

    def plain_value(self, entry: Mapping[str, Any], device: str) -> Any:
        return execution.plain_value(entry, device)

    def seed_draws(self, seed: int) -> None:
        seeding.seed_draws(seed)

    def random_states(self) -> Any:
        # On the CPU mindtorch draws from numpy, and a seed of MindSpore's is that of Python as well.
        return seeding.get_states(), np.random.get_state(), random.getstate()

    def set_random_states(self, states: Any) -> None:
        seeding.set_states(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


if TYPE_CHECKING:
    # The loader finds the class by name, so this is where a missing method shows.
    _fulfils: FrameworkAdapter = MSAdapterAdapter()
