"""Guards around the tool's own work, and operations run one by one with their gradients.

MindSpore computes in the background: a kernel that does not exist or fails raises when its result is first looked at.
A tool that looks first would take the user's error for one of its own, so every value is waited for with `wait_for`
before it is handed on, outside of all guards.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from typing import Any, Callable

from mindspore import Tensor, ops

from probe.backends.mindspore.internals import executor, wait_pipeline
from probe.common.containers import found_in
from probe.common.interfaces import Listener, Logs

_wait = wait_pipeline


class _Thread(threading.local):
    def __init__(self) -> None:
        self.unobserved = False


_thread = _Thread()


def is_unobserved() -> bool:
    """True if what runs now on this thread is the tool's own."""
    return _thread.unobserved


def unobserved(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(*args)` so that nothing of the tool records it."""
    before = _thread.unobserved
    _thread.unobserved = True
    try:
        return function(*args)
    finally:
        _thread.unobserved = before


def guarded(listener: Logs, about: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(*args)` unobserved, and log a failure: an error of the tool must not reach the user's program."""
    # Not by way of `unobserved`: it is called several times for each record.
    before = _thread.unobserved
    _thread.unobserved = True
    try:
        return function(*args)
    except Exception as error:
        listener.failed(about, error)
        return None
    finally:
        _thread.unobserved = before


def wait_for(value: Any) -> None:
    """Wait for a tensor; what failed in computing it is raised here, where it belongs to the user."""
    if isinstance(value, Tensor):
        _wait(value)


def wait_for_all(listener: Listener, about: Any, value: Any) -> None:
    """Wait for the tensors in `value`. An error in looking for them is the tool's own."""
    if isinstance(value, Tensor):
        _wait(value)
        return
    for tensor in guarded(listener, about, _tensors_in, value) or ():
        _wait(tensor)


def _tensors_in(value: Any) -> list[Tensor]:
    # Nothing is gained by what an attribute of a dataclass of the user's own might compute, or raise.
    return list(found_in(value, Tensor, in_fields=False))


# --- pynative


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
    function: Callable[..., tuple[Any, ...]], inputs: Sequence[Any], output_gradients: tuple[Any, ...]
) -> tuple[Any, ...]:
    """The gradients of all `inputs` of a function that `forward` was called with, from those of its outputs."""
    gradients: tuple[Any, ...] = executor.grad(function, _gradients, *_ALL_INPUTS, *inputs, output_gradients)
    return gradients
