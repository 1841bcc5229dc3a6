"""Asynchronous communication under torch's names.

mindtorch 0.5.1 runs none on the CPU, so that another function stands for it here.
"""

from __future__ import annotations

from typing import Any

import backend_msadapter  # first: it lets "torch" be mindtorch
import mindspore as ms
import numpy as np
import pytest
import torch

from probe.backends.msadapter.hooks import torch_module

assert backend_msadapter

distributed = torch_module("distributed")


class Work(distributed.Work):  # type: ignore[misc, name-defined]
    """Work that adds one to a tensor when it is waited for."""

    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self.tensor = tensor

    def wait(self, timeout: int = 0) -> bool:
        self.tensor.assign_value(ms.Tensor(self.tensor.asnumpy() + 1))
        return True


@pytest.fixture
def dump(runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(distributed, "all_reduce", lambda tensor, op="sum", group=None, async_op=False: Work(tensor))
    debugger = runs.new()
    debugger.start()
    tensors = [backend.tensor(np.ones(2, np.float32)) for _ in range(3)]
    works = [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
    works[0].wait()
    torch.abs(tensors[0])
    works[1].wait()
    debugger.stop()
    debugger.step()
    return runs.read()


def test_the_output_is_there_once_it_was_waited_for_and_the_record_says_where_that_was(dump: Any) -> None:
    records = [dump.data[f"Distributed.all_reduce.{number}.forward"] for number in range(3)]
    assert [record["input_args"][0]["Max"] for record in records] == [1, 1, 1]
    assert [record["output"][0]["Max"] for record in records[:2]] == [2, 2]
    assert "output" not in records[2]
    found = [record.get("waited_after") for record in records]
    assert found == ["Distributed.all_reduce.2.forward", "Torch.abs.0.forward", None]
