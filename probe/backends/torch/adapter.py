"""The PyTorch adapter."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, cast

import torch

from probe.backends.protocol import (
    Evaluated,
    FrameworkAdapter,
    ModuleHandles,
    OperatorListener,
    ScaledUpdate,
    ScriptWords,
    StepKeeper,
    TrainingHooks,
)
from probe.backends.shared.api_list import as_now
from probe.backends.shared.autograd.backward_tracker import BackwardTracker
from probe.backends.shared.patching import wrap_attribute
from probe.backends.torch import internals
from probe.backends.torch.autograd.graph import TorchGraph
from probe.backends.torch.execution import copies, evaluation, functions, rounding, script
from probe.backends.torch.execution import values as array_values
from probe.backends.torch.guards import unobserved
from probe.backends.torch.hooks import api_list, module_hooks, operators, scalers, training_hooks
from probe.backends.torch.hooks.api_hooks import ApiHooks
from probe.backends.torch.hooks.module_hooks import ModuleHooks
from probe.backends.torch.hooks.optimizer_hooks import OptimizerHooks
from probe.backends.torch.randomness import random_calls, seeding, states
from probe.backends.torch.replay import step_keeper as keeper
from probe.backends.torch.tensors import describe, plain_tensors
from probe.backends.torch.tensors.framework_values import FrameworkValues
from probe.backends.torch.tensors.statistics import Statistics
from probe.common.interfaces import ApiName, Entry, Handle, Listener, ModuleName, RandomCall, StatisticsMode, TensorFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Parts:
    """What serves one listener."""

    listener: Listener
    tracker: BackwardTracker
    apis: ApiHooks
    modules: ModuleHooks
    optimizer: OptimizerHooks


class TorchAdapter:
    """Implements `probe.backends.protocol.FrameworkAdapter` for PyTorch on CPU, CUDA and NPU."""

    framework = "pytorch"
    default_risk_level = "FOCUS"
    several_outputs: tuple[type, ...] = (tuple, list)
    module_root = module_hooks.ROOT
    training: TrainingHooks = training_hooks
    script: ScriptWords = script
    differentiates_anywhere = True
    absent = internals.absent_text()

    def __init__(self) -> None:
        self._statistics = Statistics()
        self._describer = describe.TensorDescriber(self._statistics)
        self._parts: _Parts | None = None
        # Bound here so that the hot path finds them without a look-up through the class.
        self.describe_tensor: Callable[[Any, StatisticsMode], Entry] = self._describer.describe
        self.describe_value = FrameworkValues(torch).describe
        self.direct_describer = plain_tensors.direct_describer
        self.content_mark = plain_tensors.content_mark
        self.pending = self._statistics.pending

    # --- tensors and statistics

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def random_state(self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        return states.random_state(base, args, kwargs)

    def tensor_file(self, tensor: Any, copied: bool) -> TensorFile | None:
        return cast("TensorFile | None", unobserved(describe.tensor_file, tensor, copied))

    def resolve(self) -> None:
        unobserved(self._statistics.resolve)

    def risk_class(self, base: str) -> str:
        return api_list.risk_class(base)

    # --- hooks

    def _for(self, listener: Listener) -> _Parts:
        if self._parts is None or self._parts.listener is not listener:
            graph = TorchGraph(listener)
            tracker = BackwardTracker(listener, graph)
            apis = ApiHooks(listener, tracker, graph, as_now(api_list.watched()))
            modules, optimizer = ModuleHooks(listener, tracker), OptimizerHooks(listener)
            self._parts = _Parts(listener, tracker, apis, modules, optimizer)
        return self._parts

    def attach_apis(self, models: Any, listener: Listener) -> Handle:
        apis = self._for(listener).apis
        apis.install()
        return apis

    def attach_custom_api(self, owner: Any, attribute: str, prefix: str, listener: Listener) -> Handle:
        name = ApiName(f"{prefix}.{attribute}", attribute)
        wrapper = self._for(listener).apis.wrapper
        return wrap_attribute(owner, attribute, lambda function: wrapper(name, function))

    def attach_operators(self, listener: OperatorListener) -> Handle:
        mode = operators.OperatorMode(listener)
        mode.attach()
        return mode

    def attach_modules(self, models: Any, listener: Listener) -> ModuleHandles:
        return self._for(listener).modules.attach(models)

    def attach_module(self, module: Any, name: ModuleName, listener: Listener) -> ModuleHandles:
        return self._for(listener).modules.attach_one(module, name)

    def attach_optimizer_hooks(self, listener: Listener) -> Handle:
        optimizer = self._for(listener).optimizer
        optimizer.install()
        return optimizer

    def attach_passes(self, models: Any, begin: Callable[[], None], end: Callable[[], None]) -> Handle:
        return module_hooks.attach_passes(models, begin, end)

    def attach_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Handle | None:
        if not tensor.requires_grad:
            return None

        def callback_unobserved(gradient: Any) -> None:
            unobserved(callback, gradient)

        return module_hooks.attach_gradient(tensor, callback_unobserved)

    def finish_backward(self) -> None:
        if self._parts is not None:
            unobserved(self._parts.tracker.finish)

    def end_step(self) -> None:
        if self._parts is not None:
            self._parts.tracker.forget()
            self._parts.apis.end_step()

    def is_module(self, value: Any) -> bool:
        return isinstance(value, torch.nn.Module)

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
    ) -> StepKeeper:
        return keeper.StepKeeper(with_parameters, numbers, failed)

    # --- execution

    def function(self, base: str, attributes: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        return functions.function(base)

    def reference_function(self, base: str, attributes: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        # torch has them all.
        return None

    def tensor(self, values: NDArray[Any], dtype: str, device: str) -> torch.Tensor:
        return array_values.tensor(values, dtype, device)

    def values(self, tensor: torch.Tensor) -> NDArray[Any]:
        return array_values.values(tensor)

    def dtype_name(self, tensor: torch.Tensor) -> str:
        return array_values.dtype_name(tensor)

    def device_name(self, tensor: torch.Tensor) -> str:
        return str(tensor.device)

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return copies.copied(tensor)

    def plain_value(self, entry: Mapping[str, Any], device: str) -> Any:
        return array_values.plain_value(entry, device)

    def evaluate(
        self, function: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], differentiated: Sequence[int]
    ) -> Evaluated:
        return evaluation.evaluate(function, inputs, differentiated)

    def autocast(self, dtype: str, device: str) -> contextlib.AbstractContextManager[None]:
        return evaluation.autocast(dtype, device)

    def devices(self) -> Sequence[str]:
        return evaluation.devices()

    def restore_draws(self, state: NDArray[Any], device: str) -> bool:
        return states.restore(array_values.tensor(state, "uint8", "cpu"), device)

    def seed_draws(self, seed: int) -> None:
        evaluation.seed_draws(seed)

    def random_states(self) -> Any:
        return seeding.get_states()

    def set_random_states(self, states: Any) -> None:
        seeding.set_states(states)

    def rounding_inside(self, unit: float, seed: int) -> contextlib.AbstractContextManager[None]:
        return rounding.rounding_inside(unit, seed)

    def one_thread(self) -> contextlib.AbstractContextManager[None]:
        return evaluation.one_thread()


if TYPE_CHECKING:
    # The loader finds the class by name, so this is where a missing method shows.
    _fulfils: FrameworkAdapter = TorchAdapter()
