"""A process group of one process, over tensors on the device: gloo takes those of the CPU and of CUDA only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future


class Alone(dist.ProcessGroup):
    """Collectives whose results are their inputs. The name is kept here, for torch asks a backend for it."""

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def allreduce(self, tensors: Any, options: Any = None) -> Any:
        return _done(tensors)

    broadcast = barrier = allreduce

    def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        for (output,), tensor in zip(outputs, inputs):
            output.copy_(tensor)
        return _done(outputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, options: Any = None) -> Any:
        output.copy_(tensor.reshape(output.shape))
        return _done([output])

    _reduce_scatter_base = _allgather_base


def _done(result: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    return _create_work_from_future(future)


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """Inside, the default process group is that of this process alone."""
    if "ALONE" not in dist.Backend.__dict__:
        dist.Backend.register_backend("alone", lambda store, rank, size, _: Alone(rank, size), devices=["cpu", device])
    dist.init_process_group("alone", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
