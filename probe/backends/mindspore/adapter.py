"""The MindSpore adapter, for dynamic graph."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, cast

import numpy as np
from mindspore import Tensor

from probe.backends.mindspore import internals
from probe.backends.mindspore.autograd.interface import Tracker
from probe.backends.mindspore.autograd.tracker import tracker_for
from probe.backends.mindspore.execution import devices, evaluation, functions, in_float64, script
from probe.backends.mindspore.execution import values as execution_values
from probe.backends.mindspore.guards import unobserved
from probe.backends.mindspore.hooks import api_list, module_hooks, scalers, training_hooks
from probe.backends.mindspore.hooks.api_hooks import ApiHooks, async_work_types
from probe.backends.mindspore.hooks.jit import Compilation
from probe.backends.mindspore.hooks.module_hooks import CELLS, ModuleHooks, ModuleKind
from probe.backends.mindspore.randomness import random_calls, seeding
from probe.backends.mindspore.tensors import describe
from probe.backends.mindspore.tensors.statistics import Statistics
from probe.backends.protocol import (
    Evaluated,
    FrameworkAdapter,
    ModuleHandles,
    OperatorListener,
    ScaledUpdate,
    ScriptWords,
    TrainingHooks,
    UnknownValue,
)
from probe.backends.shared.api_list import Watched
from probe.backends.shared.patching import Handles, wrap_attribute
from probe.common.interfaces import ApiName, Entry, Handle, Listener, ModuleName, RandomCall, StatisticsMode, TensorFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Parts:
    """What serves one listener."""

    listener: Listener
    tracker: Tracker
    apis: ApiHooks
    modules: ModuleHooks


class MindSporeAdapter:
    """Implements `probe.backends.protocol.FrameworkAdapter` for MindSpore on CPU, GPU and Ascend."""

    framework = "mindspore"
    default_risk_level = "ALL"
    several_outputs: tuple[type, ...] = (tuple,)
    kind: ModuleKind = CELLS
    training: TrainingHooks = training_hooks
    script: ScriptWords = script
    # What is kept for the gradients of a call that nobody asks for is freed together with what the program needs.
    differentiates_anywhere = False
    absent = internals.absent_text()

    def __init__(self) -> None:
        self.module_root = self.kind.root
        self._statistics = Statistics()
        self._describer = describe.TensorDescriber(self._statistics)
        self._parts: Parts | None = None
        # Bound here so that the hot path finds them without a look-up through the class.
        self.describe_tensor: Callable[[Any, StatisticsMode], Entry] = self._describer.describe
        self.describe_value: Callable[[Any, str | None], Entry | None] = describe.describe_value
        self.pending = self._statistics.pending

    # --- tensors and statistics

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, Tensor)

    def direct_describer(self, summary: StatisticsMode) -> None:
        return None

    def content_mark(self, tensor: Any) -> None:
        # MindSpore tells nobody of writes to a tensor.
        return None

    def random_state(self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any | None:
        # Its kernels draw from seeds and counters of their own, which it does not tell.
        return None

    def tensor_file(self, tensor: Any, copied: bool) -> TensorFile | None:
        return cast("TensorFile | None", unobserved(describe.tensor_file, tensor, copied))

    def resolve(self) -> None:
        unobserved(self._statistics.resolve)

    def risk_class(self, base: str) -> str:
        return api_list.risk_class(base)

    # --- hooks

    def watched(self) -> dict[str, list[Watched]]:
        """The functions to watch, by family."""
        return api_list.watched()

    def async_work_types(self) -> list[type]:
        """The classes of what asynchronous communication returns, which has a method ``wait``."""
        return async_work_types()

    def _for(self, listener: Listener) -> Parts:
        if self._parts is None or self._parts.listener is not listener:
            tracker, compilation = tracker_for(listener), Compilation(listener)
            apis = ApiHooks(listener, tracker, compilation, self.watched, self.async_work_types)
            self._parts = Parts(listener, tracker, apis, ModuleHooks(listener, tracker, compilation, self.kind))
        return self._parts

    def attach_apis(self, models: Any, listener: Listener) -> Handle:
        apis = self._for(listener).apis
        apis.install(models, self.kind)
        return apis

    def attach_custom_api(self, owner: Any, attribute: str, prefix: str, listener: Listener) -> Handle:
        name = ApiName(f"{prefix}.{attribute}", attribute)
        wrapper = self._for(listener).apis.wrapper
        return wrap_attribute(owner, attribute, lambda function: wrapper(name, function))

    def attach_operators(self, listener: OperatorListener) -> None:
        # MindSpore computes its functions in C++, and offers nothing below them.
        return None

    def attach_modules(self, models: Any, listener: Listener) -> ModuleHandles:
        return self._for(listener).modules.attach(models)

    def attach_module(self, module: Any, name: ModuleName, listener: Listener) -> ModuleHandles:
        return self._for(listener).modules.attach_one(module, name)

    def attach_optimizer_hooks(self, listener: Listener) -> Handle:
        # Clipping and the optimizer are no nodes of the module tree of MindSpore.
        return Handles([])

    def attach_passes(self, models: Any, begin: Callable[[], None], end: Callable[[], None]) -> Handle:
        return module_hooks.attach_passes(self.kind, models, begin, end)

    def attach_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Handle | None:
        return module_hooks.attach_gradient(tensor, callback)

    def finish_backward(self) -> None:
        if self._parts is not None:
            unobserved(self._parts.tracker.finish)

    def end_step(self) -> None:
        if self._parts is not None:
            self._parts.tracker.forget()
            self._parts.apis.end_step()

    def is_module(self, value: Any) -> bool:
        return isinstance(value, self.kind.base)

    def class_name(self, module: Any) -> str:
        return type(module).__name__

    # --- randomness

    def seed_everything(self, seed: int, deterministic: bool) -> None:
        seeding.seed_everything(seed, deterministic)

    def remove_dropout(self) -> Handle:
        return seeding.remove_dropout()

    def fix_random_calls(self) -> Handle:
        return seeding.fix_random_calls()

    def random_calls(self) -> Sequence[RandomCall]:
        return random_calls.random_calls()

    # --- runtime

    def rank(self) -> int | None:
        return random_calls.rank()

    def attach_scalers(self, note: Callable[[ScaledUpdate], None]) -> Handle:
        return scalers.attach_scalers(note)

    def largest_over_ranks(self, numbers: Sequence[int]) -> list[int]:
        return cast("list[int]", unobserved(scalers.largest_over_ranks, numbers))

    def step_keeper(
        self,
        with_parameters: bool,
        numbers: Callable[[], Mapping[str, int]],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        # Gradients come of functional transformations of the whole step: no call has a backward of its own.
        return None

    # --- running one call alone

    def function(self, base: str, attributes: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        return functions.function(base, attributes)

    def reference_function(self, base: str, attributes: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        return in_float64.function(base, attributes)

    def tensor(self, values: NDArray[Any], dtype: str, device: str) -> Any:
        return execution_values.tensor(values, dtype, device)

    def values(self, tensor: Any) -> NDArray[Any]:
        return execution_values.values(tensor)

    def dtype_name(self, tensor: Any) -> str:
        return execution_values.dtype_name(tensor)

    def device_name(self, tensor: Any) -> str:
        return devices.devices()[0]

    def copied(self, tensor: Any) -> Any:
        return unobserved(execution_values.copied, tensor)

    def plain_value(self, entry: Mapping[str, Any], device: str) -> Any:
        return execution_values.plain_value(entry, device)

    def evaluate(
        self, function: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], differentiated: Sequence[int]
    ) -> Evaluated:
        return evaluation.evaluate(function, inputs, differentiated)

    def autocast(self, dtype: str, device: str) -> contextlib.AbstractContextManager[None]:
        raise UnknownValue(f"MindSpore has no autocast to {dtype}: its amp changes a network before that runs")

    def devices(self) -> Sequence[str]:
        return devices.devices()

    def restore_draws(self, state: NDArray[Any], device: str) -> bool:
        return False

    def seed_draws(self, seed: int) -> None:
        seeding.seed_draws(seed)

    def random_states(self) -> Any:
        # A seed of MindSpore's is that of numpy and of Python as well.
        return seeding.get_states(), np.random.get_state(), random.getstate()

    def set_random_states(self, states: Any) -> None:
        seeding.set_states(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])

    def rounding_inside(self, unit: float, seed: int) -> contextlib.AbstractContextManager[None]:
        # A function is one kernel, of which nothing inside is seen.
        return contextlib.nullcontext()

    def one_thread(self) -> contextlib.AbstractContextManager[None]:
        return devices.one_thread()


if TYPE_CHECKING:
    # The loader finds the class by name, so this is where a missing method shows.
    _fulfils: FrameworkAdapter = MindSporeAdapter()
