"""Running the operations of a function one by one, and their gradients."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Callable

from mindspore import ops

from probe.backends.mindspore.internals import executor

_gradients = ops.GradOperation(get_all=True, sens_param=True)
# Neither weights nor positions are chosen; newer releases are also told that no output is left out.
_ALL_INPUTS = (None, None, False) if "has_aux" in inspect.signature(executor.grad).parameters else (None, None)


def forward(function: Callable[..., tuple[Any, ...]], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Call `function` and keep what `backward` needs, in a program that records no gradients too."""
    enabled = executor.enable_grad()
    executor.set_enable_grad(True)
    try:
        executor.set_grad_flag(True)
        executor.new_graph(function, *inputs)
        outputs = function(*inputs)
        executor.end_graph(function, outputs, *inputs)
    finally:
        executor.set_enable_grad(enabled)
    return outputs


def backward(
    function: Callable[..., tuple[Any, ...]], inputs: Sequence[Any], of_outputs: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The gradients of all `inputs` of a function that `forward` was called with, from those of its outputs."""
    gradients: tuple[Any, ...] = executor.grad(function, _gradients, *_ALL_INPUTS, *inputs, of_outputs)
    return gradients
