"""Keeps of each step what its forward and backward need to be run again, and runs them again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Union

import torch

from probe.backends.protocol import KeptStep, ReplayError
from probe.backends.shared.patching import Handles
from probe.backends.torch import internals, surroundings
from probe.backends.torch.gradient_graph import tensors_in
from probe.backends.torch.guards import unobserved
from probe.backends.torch.hooks.module_hooks import attach_calls
from probe.backends.torch.originals import of_torch, own
from probe.backends.torch.surroundings import inner_model, no_communication
from probe.common.containers import by_prefix
from probe.common.interfaces import Handle, ModuleName

_MOST_CALLS = 64
"""Calls of the model that are kept of one step."""
_gradients = of_torch(torch.autograd.grad)
_current_pass = internals.current_pass

_Numbers = Mapping[str, int]
_Failed = Callable[[str, BaseException], None]


@dataclass
class _KeptCall:
    """One call of a model."""

    model: torch.nn.Module
    args: Any
    kwargs: Any
    random: surroundings.RandomState
    modes: surroundings.Modes
    training: list[tuple[torch.nn.Module, bool]]
    values: list[tuple[torch.Tensor, surroundings.KeptTensor]]
    """The parameters and buffers that were written to since the call before; all of them in the first call."""
    numbers: _Numbers
    output: Any = None
    """The output of the call that is run again."""


@dataclass
class _Backward:
    """The gradients that came to the outputs of one call in one pass, by the place of the output."""

    call: _KeptCall
    engine_pass: int
    gradients: dict[int, surroundings.KeptTensor] = field(default_factory=dict)


_Event = Union[_KeptCall, _Backward]


class KeptStepOfTorch:
    """Implements `KeptStep`."""

    def __init__(self) -> None:
        self.models: Any = None
        self.events: list[_Event] = []
        self.left_out = 0
        self.is_open = True
        """True if more is noted."""
        self.versions: dict[int, int] = {}
        """The versions of the parameters and buffers that were kept last, by identity."""

    def forget(self) -> None:
        self.is_open = False
        self.models = None
        self.events = []

    def calls(self) -> list[_KeptCall]:
        return [event for event in self.events if isinstance(event, _KeptCall)]

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Everything that is run again belongs in here: afterwards models and random states are what they were."""
        models = list({id(call.model): call.model for call in self.calls()}.values())
        models += [model for model in by_prefix(self.models).values() if model not in models]
        state = surroundings.random_state()
        try:
            with surroundings.models_untouched(models):
                yield
        finally:
            state.put_in()

    def run_again(self, begin: Callable[[_Numbers], None]) -> None:
        if not self.events:
            raise ReplayError("the model that was given to start was not called in this step")
        inputs: list[torch.Tensor] = []
        try:
            with no_communication():
                for event in self.events:
                    if isinstance(event, _KeptCall):
                        self._forward(event, begin, inputs)
                    else:
                        self._backward(event, inputs)
        finally:
            for call in self.calls():
                call.output = None

    def _forward(self, call: _KeptCall, begin: Callable[[_Numbers], None], inputs: list[torch.Tensor]) -> None:
        for tensor, value in call.values:
            unobserved(_put, tensor, value)
        for module, training in call.training:
            module.training = training
        args, kwargs = surroundings.all_again((call.args, call.kwargs), inputs)
        begin(call.numbers)
        call.random.put_in()
        with call.modes.put_in():
            call.output = call.model(*args, **kwargs)

    def _backward(self, event: _Backward, inputs: list[torch.Tensor]) -> None:
        outputs = list(tensors_in(event.call.output))
        chosen = [(outputs[index], kept.again()) for index, kept in event.gradients.items() if index < len(outputs)]
        values = surroundings.values_of([event.call.model])
        parameters = [value for value in values if value.requires_grad and value.is_leaf]
        leaves = [*parameters, *inputs]
        if not chosen or not leaves:
            return
        # Not `backward`: nothing is accumulated into `.grad`, and no hook on that is called, such as those that
        # exchange gradients with other ranks or make the optimizer's step. The graph is kept, since a part of it may be
        # the program's own.
        with torch.inference_mode(False):
            _gradients(
                [output for output, _ in chosen], leaves, [gradient for _, gradient in chosen],
                retain_graph=True, allow_unused=True,
            )  # fmt: skip


def _put(tensor: torch.Tensor, value: surroundings.KeptTensor) -> None:
    own.copy_(tensor.data, value.values)


class TorchStepKeeper:
    """Implements `probe.backends.protocol.StepKeeper`.

    Args:
        with_parameters: True if parameters and buffers are kept.
        numbers: Gives what `KeptStep.run_again` hands back before each call.
        failed: Called with a text and the error when something in here fails.
    """

    def __init__(self, with_parameters: bool, numbers: Callable[[], _Numbers], failed: _Failed) -> None:
        self._with_parameters = with_parameters
        self._numbers = numbers
        self._failed = failed
        self._step = KeptStepOfTorch()
        self._thread = threading.local()

    def attach(self, models: Any) -> Handle:
        handles = Handles(
            attach_calls(inner_model(model), self._before, self._after) for model in by_prefix(models).values()
        )
        self._step.models = models
        self._thread = threading.local()
        return handles

    def take(self) -> KeptStep:
        step, self._step = self._step, KeptStepOfTorch()
        return step

    def forget(self) -> None:
        self._step.forget()
        self._step = KeptStepOfTorch()

    # --- the hooks

    def _before(self, name: ModuleName, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        depth = self._thread.depth = getattr(self._thread, "depth", 0) + 1
        if depth == 1:
            self._thread.call = None
            self._attempt("what a step needs to be run again", self._keep_as_now, module, args, kwargs)

    def _keep_as_now(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        # The modes are those of the program, which `unobserved` changes.
        unobserved(self._keep, module, args, kwargs, surroundings.modes())

    def _keep(self, module: torch.nn.Module, args: Any, kwargs: Any, modes: surroundings.Modes) -> None:
        step = self._step
        if len(step.calls()) >= _MOST_CALLS:
            step.left_out += 1
            return
        args, kwargs = surroundings.all_kept((args, kwargs))
        training = [(each, each.training) for each in surroundings.modules_of([module])]
        call = _KeptCall(
            module, args, kwargs, surroundings.random_state(), modes, training, self._values(module), self._numbers()
        )
        self._thread.call = call
        step.events.append(call)

    def _values(self, module: torch.nn.Module) -> list[tuple[torch.Tensor, surroundings.KeptTensor]]:
        if not self._with_parameters:
            return []
        found, versions = [], self._step.versions
        for tensor in surroundings.values_of([module]):
            version = -1 if own.is_inference(tensor) else tensor._version
            if version < 0 or versions.get(id(tensor)) != version:
                versions[id(tensor)] = version
                found.append((tensor, surroundings.kept(tensor)))
        return found

    def _after(self, name: ModuleName, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._thread.depth = depth = getattr(self._thread, "depth", 1) - 1
        call = getattr(self._thread, "call", None)
        if depth == 0 and call is not None:
            self._thread.call = None
            self._attempt("the gradients of the model's outputs", unobserved, self._watch_outputs, call, output)

    def _watch_outputs(self, call: _KeptCall, output: Any) -> None:
        for index, tensor in enumerate(tensors_in(output)):
            node = tensor.grad_fn
            if node is not None:
                node.register_prehook(_GradientHook(self._step, call, index, tensor.output_nr, self._failed))

    def _attempt(self, about: str, action: Callable[..., Any], *args: Any) -> None:
        try:
            action(*args)
        except Exception as error:
            self._failed(about, error)


class _GradientHook:
    """Keeps what comes to one output; it knows nothing of the graph that it hangs on."""

    __slots__ = ("_call", "_failed", "_index", "_number", "_step")

    def __init__(self, step: KeptStepOfTorch, call: _KeptCall, index: int, number: int, failed: _Failed) -> None:
        self._step = step
        self._call = call
        self._index = index
        self._number = number
        self._failed = failed

    def __call__(self, gradients: Any) -> None:
        if not self._step.is_open:
            return
        try:
            gradient = gradients[self._number]
            if gradient is not None:
                unobserved(self._keep, gradient)
        except Exception as error:
            self._failed("the gradients of the model's outputs", error)

    def _keep(self, gradient: torch.Tensor) -> None:
        step, engine_pass = self._step, _current_pass()
        for event in step.events:
            if isinstance(event, _Backward) and event.call is self._call and event.engine_pass == engine_pass:
                break
        else:
            event = _Backward(self._call, engine_pass)
            step.events.append(event)
        event.gradients[self._index] = surroundings.kept(gradient)
