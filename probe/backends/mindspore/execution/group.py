"""The group `Execution` of MindSpore, which the files of this folder make up."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np
from mindspore import Tensor, ops

from probe.backends.mindspore import guards
from probe.backends.mindspore.describe import is_tensor, requires_grad
from probe.backends.mindspore.execution import script as words
from probe.backends.mindspore.execution.in_float64 import function as reference_function
from probe.backends.mindspore.execution.values import (
    copied,
    device_name,
    devices,
    dtype_name,
    function,
    one_thread,
    plain_value,
    tensor,
    values,
)
from probe.backends.mindspore.gradient_graph import DIFFERENTIABLE, tensors_in
from probe.backends.mindspore.guards import unobserved, wait_for
from probe.backends.mindspore.internals import executor, register_hook
from probe.backends.mindspore.randomness import random_states, restore_draws, seed_draws, set_random_states
from probe.backends.protocol import Compilation, OperatorListener, ScriptWords, UnknownValue

__all__ = [
    "attach_operators",
    "autocast",
    "compilation",
    "copied",
    "device_name",
    "devices",
    "differentiates_anywhere",
    "dtype_name",
    "evaluate",
    "function",
    "is_tensor",
    "one_thread",
    "plain_value",
    "random_states",
    "reference_function",
    "restore_draws",
    "rounding_inside",
    "script",
    "seed_draws",
    "set_random_states",
    "tensor",
    "values",
]

_register_hook = register_hook

Function = Callable[[Sequence[Any]], Any]


class Call:
    """A call of which no gradient can be asked for. Implements `probe.backends.protocol.Evaluated`."""

    def __init__(self, output: Any, asked: int) -> None:
        self.output = output
        self._asked = asked
        """The number of gradients that are asked for."""

    @property
    def are_gradients_recorded(self) -> bool:
        """No: a record has them in the order of the nodes of the graph, without those that have none."""
        return False

    def gradients(self, output_gradients: Sequence[Any]) -> list[Any]:
        return [None] * self._asked


@dataclass
class _Recording:
    """A running recording, and its result when it is done."""

    function: Function
    inputs: list[Any]
    differentiated: list[int]
    """Positions in `inputs`."""
    output: Any = None
    participating: list[int] = field(default_factory=list)
    """Indices of the tensors of `output` that have a gradient."""
    reached: set[int] = field(default_factory=set)
    """To which of `differentiated` a gradient came, by its position there."""

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The call as MindSpore wants it: from the differentiated inputs to the outputs that have a gradient."""
        for index, (place, value) in enumerate(zip(self.differentiated, tensors)):
            self.inputs[place] = _view(value)
            _register_hook(value, _noting(self.reached, index))
        self.output = self.function(self.inputs)
        found = list(tensors_in(self.output))
        self.participating = [index for index, tensor in enumerate(found) if _participates(tensor)]
        # MindSpore wants at least one output, and to return an input costs nothing.
        return tuple(found[index] for index in self.participating) or (tensors[0],)


class RecordedCall(Call):
    """A call whose gradients can be asked for, once: what it takes is then gone."""

    def __init__(
        self, recording: _Recording, function: Any, inputs: list[Tensor], asked: int, places: list[int]
    ) -> None:
        super().__init__(recording.output, asked)
        self._recording: _Recording | None = recording
        self._function = function
        """By its identity MindSpore finds again what it keeps."""
        self._inputs = inputs
        self._places = places
        """Indices of the gradients asked for that are those of `inputs`; others cannot have any."""
        _kept.add(self, awaited=bool(recording.participating))

    def gradients(self, output_gradients: Sequence[Any]) -> list[Any]:
        found = super().gradients(output_gradients)
        recording, self._recording = self._recording, None
        if recording is None or all(output_gradients[index] is None for index in recording.participating):
            return found
        tensors = list(tensors_in(self.output))
        given = tuple(
            _zeros_like(tensors[index]) if output_gradients[index] is None else output_gradients[index]
            for index in recording.participating
        )
        try:
            gradients = unobserved(guards.backward, self._function, self._inputs, given)
            _wait_for_all(gradients)
        except BaseException:
            _kept.free()
            raise
        _kept.discard(self)
        for index, gradient in enumerate(gradients):
            # MindSpore gives zeros for an input on which nothing depends; only hooks tell it from one with zeros.
            if index in recording.reached:
                found[self._places[index]] = gradient
        return found


class _Kept:
    """The state that MindSpore keeps for backwards that are still to come.

    A backward frees what it took. What nobody asked a backward of can only be freed together with everything else, so
    that is done when nobody can ask for anything any more, and between calls: never inside of one that is recorded.
    """

    def __init__(self) -> None:
        self._count = 0
        self._awaited: weakref.WeakSet[RecordedCall] = weakref.WeakSet()

    def add(self, call: RecordedCall, awaited: bool) -> None:
        self._count += 1
        if awaited:
            self._awaited.add(call)

    def discard(self, call: RecordedCall) -> None:
        """Forget a call whose backward was run."""
        self._count -= 1
        self._awaited.discard(call)

    def free_abandoned(self) -> None:
        if self._count and not self._awaited:
            self.free()

    def free(self) -> None:
        self._count = 0
        self._awaited.clear()
        executor.clear_res()


_kept = _Kept()


def evaluate(function: Function, inputs: Sequence[Any], differentiated: Sequence[int]) -> Call:
    """Call `function` with `inputs`; see `probe.backends.protocol.Execution.evaluate`.

    Raises:
        Exception: what the function or MindSpore raises, such as a TypeError for a dtype that a kernel does not have.
    """
    places = [place for place, index in enumerate(differentiated) if inputs[index].dtype in DIFFERENTIABLE]
    if not places:
        output = unobserved(function, inputs)
        _wait_for_all(output)
        return Call(output, len(differentiated))
    _kept.free_abandoned()
    chosen = [differentiated[place] for place in places]
    tensors = [inputs[index] for index in chosen]
    recording = _Recording(function, list(inputs), chosen)

    def recorded(*differentiated: Tensor) -> tuple[Tensor, ...]:
        return recording.run(differentiated)

    try:
        unobserved(guards.forward, recorded, tensors)
        _wait_for_all(recording.output)
    except BaseException:
        # Recording would go on, with everything that this process computes from now on.
        _kept.free()
        raise
    return RecordedCall(recording, recorded, tensors, len(differentiated), places)


def autocast(dtype: str, device: str) -> contextlib.AbstractContextManager[None]:
    """Nothing that MindSpore has.

    Raises:
        UnknownValue: always.
    """
    raise UnknownValue(f"MindSpore has no autocast to {dtype}: its amp changes a network before it runs")


def rounding_inside(unit: float, seed: int) -> contextlib.AbstractContextManager[None]:
    """Nothing is moved: a function is one kernel, of which nothing inside is seen."""
    return contextlib.nullcontext()


def _noting(reached: set[int], index: int) -> Callable[[Any], Any]:
    def note(gradient: Any) -> Any:
        reached.add(index)
        return gradient

    return note


def _view(tensor: Tensor) -> Tensor:
    """Another tensor over the same memory: the function may write to it, which an input itself does not allow."""
    view = ops.reshape(tensor, tensor.shape)
    device = getattr(tensor, "_device", None)
    if device is not None:
        # mindtorch refuses a tensor without its own mark of the device.
        view._device = device
    return view


def _participates(tensor: Tensor) -> bool:
    return tensor.dtype in DIFFERENTIABLE and requires_grad(tensor)


def _zeros_like(tensor: Tensor) -> Tensor:
    return Tensor(np.zeros(tensor.shape, np.float32), tensor.dtype)


def _wait_for_all(output: Any) -> None:
    """A kernel that does not exist, or fails, raises when its result is first looked at: that is now."""
    for result in tensors_in(output):
        wait_for(result)


# --- group


script: ScriptWords = words
compilation: Compilation | None = None
# Data kept for gradients that nobody asks for is freed together with what the program needs.
differentiates_anywhere = False


def attach_operators(listener: OperatorListener) -> None:
    """None: MindSpore computes its functions in C++, and offers nothing below them."""
    return None
