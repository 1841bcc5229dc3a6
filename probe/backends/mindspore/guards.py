"""Running the tool's own work so that nothing of the user's notices, and the user's own errors stay the user's.

MindSpore computes in the background: a kernel that does not exist or fails raises when its result is first looked at.
A tool that looks first would take the user's error for one of its own, so every value is looked at once with `settle`
before it is handed on, outside of all guards.
"""

from __future__ import annotations

import threading
from typing import Any, Callable

from mindspore import Tensor
from mindspore._c_expression import TensorPy

from probe.common.containers import found_in
from probe.common.interfaces import Listener

_wait: Callable[[Any], None] = TensorPy.wait_pipeline


class _Thread(threading.local):
    def __init__(self) -> None:
        self.quiet = False


_thread = _Thread()


def is_quiet() -> bool:
    """Whether what runs now on this thread is the tool's own."""
    return _thread.quiet


def quietly(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(*args)` unseen."""
    before = _thread.quiet
    _thread.quiet = True
    try:
        return function(*args)
    finally:
        _thread.quiet = before


def safely(listener: Listener, about: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call `function(*args)` unseen; a failure is the tool's own affair and must not reach the user's program."""
    # Not by way of `quietly`: it is called several times for each record.
    before = _thread.quiet
    _thread.quiet = True
    try:
        return function(*args)
    except Exception as error:
        listener.failed(about, error)
        return None
    finally:
        _thread.quiet = before


def settle(value: Any) -> None:
    """Wait for a tensor; what failed in computing it is raised here, where it belongs to the user."""
    if isinstance(value, Tensor):
        _wait(value)


def settle_all(listener: Listener, about: Any, value: Any) -> None:
    """The same for the tensors in `value`. To look for them is the tool's own affair."""
    if isinstance(value, Tensor):
        _wait(value)
        return
    for tensor in safely(listener, about, _tensors_in, value) or ():
        _wait(tensor)


def _tensors_in(value: Any) -> list[Tensor]:
    # Nothing is gained by what an attribute of a dataclass of the user's own might compute, or raise.
    return list(found_in(value, Tensor, in_fields=False))
