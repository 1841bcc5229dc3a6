"""One call of a function, and the gradients of its inputs.

MindSpore's transformations of functions want the gradients of the outputs before the outputs are known, and would run
the call a second time for them: with other random numbers, on inputs that it may have written to. So forward and
backward are here the two steps that the transformations themselves consist of, one after the other.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np
from mindspore import Tensor
from mindspore._c_expression import TensorPy

from probe.backends.mindspore import pynative
from probe.backends.mindspore.autograd.graph import DIFFERENTIABLE, tensors_in
from probe.backends.mindspore.guards import unobserved, wait_for
from probe.backends.mindspore.tensors.describe import requires_grad

_register_hook: Callable[[Tensor, Callable[[Any], Any]], int] = TensorPy.register_hook
Function = Callable[[Sequence[Any]], Any]


class _Kept:
    """What MindSpore keeps for backwards that are still to come.

    It is freed by the backward. What nobody asked a backward of can only be freed all at once, with what other calls
    still need: that is when there are no such calls.
    """

    def __init__(self) -> None:
        self._awaited: set[object] = set()
        self._abandoned = False

    def add(self, call: _RecordedCall) -> weakref.finalize[..., _RecordedCall]:
        """Keep it until `done`, or until `call` is gone."""
        token = object()
        self._awaited.add(token)
        kept = weakref.finalize(call, self.abandon, token)
        kept.atexit = False
        return kept

    def done(self, kept: weakref.finalize[..., _RecordedCall]) -> None:
        """Its backward was run."""
        detached = kept.detach()
        if detached is not None:
            self._awaited.discard(detached[2][0])
        self._free()

    def abandon(self, token: object = None) -> None:
        """Nobody will ask for its backward."""
        self._awaited.discard(token)
        self._abandoned = True
        self._free()

    def _free(self) -> None:
        if self._abandoned and not self._awaited:
            self._abandoned = False
            pynative.executor.clear_res()


_kept = _Kept()


@dataclass
class _Call:
    """What is known of a call when it has returned. Implements `probe.backends.protocol.Evaluated` without a backward."""

    asked: int
    """How many gradients are asked for."""
    output: Any = None

    def gradients(self, of_outputs: Sequence[Any]) -> list[Any]:
        return [None] * self.asked


@dataclass
class _RecordedCall(_Call):
    """A call whose gradients can be asked for, once."""

    places: list[int] = field(default_factory=list)
    """Which of the inputs that were asked for can have a gradient."""
    inputs: list[Tensor] = field(default_factory=list)
    """The tensors at these places."""
    participating: list[int] = field(default_factory=list)
    """Which of the tensors of the output have a gradient."""
    reached: set[int] = field(default_factory=set)
    """To which of `inputs` a gradient came."""
    function: Callable[..., tuple[Tensor, ...]] | None = None
    """From `inputs` to the participating tensors, as it was recorded; ``None`` without a backward that can be run."""
    kept: Any = None
    """What `_Kept.done` wants to be told."""

    def gradients(self, of_outputs: Sequence[Any]) -> list[Any]:
        found: list[Any] = [None] * self.asked
        if self.function is None or all(of_outputs[index] is None for index in self.participating):
            return found
        function, self.function = self.function, None
        of_participating = tuple(
            _zeros_like(tensor) if of_outputs[index] is None else of_outputs[index]
            for index, tensor in enumerate(tensors_in(self.output))
            if index in self.participating
        )
        try:
            gradients = unobserved(pynative.backward, function, self.inputs, of_participating)
            for gradient in gradients:
                wait_for(gradient)
        finally:
            _kept.done(self.kept)
        for index, gradient in enumerate(gradients):
            # An input on which nothing depends has zeros here, as one on which nothing depends at this point.
            if index in self.reached:
                found[self.places[index]] = gradient
        return found


def evaluate(function: Function, inputs: Sequence[Any], differentiated: Sequence[int]) -> _Call:
    """Call `function` with `inputs`; see `probe.backends.protocol.Execution.evaluate`.

    Raises:
        Exception: what the function or MindSpore raises, such as a TypeError for a dtype that a kernel does not have.
    """
    places = [place for place, index in enumerate(differentiated) if inputs[index].dtype in DIFFERENTIABLE]
    if not places:
        output = unobserved(function, inputs)
        _wait_for_all(output)
        return _Call(len(differentiated), output)
    call = _RecordedCall(len(differentiated), places=places, inputs=[inputs[differentiated[place]] for place in places])
    _record(call, function, list(inputs), [differentiated[place] for place in places])
    return call


def _record(call: _RecordedCall, function: Function, inputs: list[Any], differentiated: list[int]) -> None:
    reached = call.reached

    def noting(index: int) -> Callable[[Any], Any]:
        def note(gradient: Any) -> Any:
            reached.add(index)
            return gradient

        return note

    def recorded(*tensors: Tensor) -> tuple[Tensor, ...]:
        for index, (place, tensor) in enumerate(zip(differentiated, tensors)):
            inputs[place] = tensor
            _register_hook(tensor, noting(index))
        call.output = function(inputs)
        results = list(tensors_in(call.output))
        call.participating = [index for index, tensor in enumerate(results) if _participates(tensor, tensors)]
        # MindSpore wants at least one output, and what returns its input has one that costs nothing.
        return tuple(results[index] for index in call.participating) or tensors[:1]

    try:
        unobserved(pynative.forward, recorded, call.inputs)
        _wait_for_all(call.output)
    except BaseException:
        # Recording would go on, with everything that this process computes from now on.
        pynative.executor.clear_res()
        raise
    if call.participating:
        call.function, call.kept = recorded, _kept.add(call)
    else:
        _kept.abandon()


def _participates(tensor: Tensor, inputs: Sequence[Tensor]) -> bool:
    # Before 2.7.2 an input that is returned as it came does not say that it has a gradient.
    return tensor.dtype in DIFFERENTIABLE and (requires_grad(tensor) or any(tensor is one for one in inputs))


def _zeros_like(tensor: Tensor) -> Tensor:
    return Tensor(np.zeros(tensor.shape, np.float32), tensor.dtype)


def _wait_for_all(output: Any) -> None:
    """A kernel that does not exist, or fails, raises when its result is first looked at: that is now."""
    for tensor in tensors_in(output):
        wait_for(tensor)
