"""Devices and threads of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import mindspore as ms

from probe.backends.mindspore.internals import RuntimeConf

_NAMES = {"CPU": "cpu", "GPU": "cuda", "Ascend": "npu"}


def devices() -> Sequence[str]:
    """The one device that this process computes on: MindSpore chooses it for the whole process."""
    target: str = ms.get_context("device_target")
    name = _NAMES[target]
    return [name] if name == "cpu" else [f"{name}:{ms.get_context('device_id')}"]


def device_name(tensor: Any) -> str:
    """The device of `tensor`, which is the device of the whole process."""
    return devices()[0]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, from now on: MindSpore takes a number once; one that the user chose stays."""
    configuration = None if RuntimeConf is None else RuntimeConf.get_instance()
    if configuration is not None and not configuration.is_op_threads_num_configured():
        configuration.set_op_threads_num(1)
    yield
