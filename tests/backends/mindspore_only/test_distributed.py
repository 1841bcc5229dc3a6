"""Two processes that msrun starts; one run serves every test."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import dumped
import mindspore_cluster
import numpy as np
import pytest

SCRIPT = """
import numpy as np
from mindspore import Tensor, mint, nn
from mindspore.communication import get_rank
from msprobe.mindspore import PrecisionDebugger
debugger = PrecisionDebugger(dump_path="dump", level="mix", task="tensor")
model = nn.SequentialCell(nn.Dense(3, 2))
debugger.start(model)
mint.abs(Tensor(np.ones(2, np.float32)))
debugger.stop()
mindspore_cluster.join()
debugger.start(model)
x = Tensor(np.full(2, get_rank() + 1.0, np.float32))
mint.distributed.all_reduce(x)
mint.distributed.all_reduce(x, async_op=True).wait()
parts = [Tensor(np.zeros(2, np.float32)) for _ in range(2)]
mint.distributed.all_gather(parts, x)
late = Tensor(np.full(2, get_rank() + 1.0, np.float32))
work = mint.distributed.all_reduce(late, async_op=True)
mint.abs(x)
work.wait()
forgotten = mint.distributed.all_reduce(x, async_op=True)
debugger.stop()
debugger.step()
forgotten.wait()
print("result", x.asnumpy().tolist(), type(forgotten).wait.__module__)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mindspore_cluster.run(tmp_path_factory.mktemp("msrun"), SCRIPT)


@pytest.fixture
def ranks(folder: Path) -> Any:
    return [dumped.read(folder / "dump", 0, f"rank{rank}") for rank in (0, 1)]


def test_the_program_computes_what_it_computes_without_the_tool(folder: Path) -> None:
    logs = [(folder / "logs" / f"worker_{number}.log").read_text(encoding="utf-8") for number in (0, 1)]
    for log in logs:
        assert "result [12.0, 12.0] mindspore." in log, log


def test_a_folder_without_rank_is_renamed_and_the_scheduler_has_none(folder: Path, ranks: Any) -> None:
    assert dumped.folders(folder / "dump") == ["step0/rank0", "step0/rank1"]
    assert all("Mint.abs.0.forward" in dump.names and not dump.errors for dump in ranks)


def test_collective_calls_record_their_arguments_after_the_transfer(ranks: Any) -> None:
    for rank, dump in enumerate(ranks):
        first = dump.data["MintDistributed.all_reduce.0.forward"]
        assert first["input_args"][0]["Max"] == rank + 1 and first["output"][0]["Max"] == 3
        assert np.load(dump.folder / "dump_tensor_data" / first["output"][0]["data_name"]).tolist() == [3, 3]
        gathered = dump.data["MintDistributed.all_gather.0.forward"]
        assert gathered["input_args"][0] is None and [part["Mean"] for part in gathered["output"][0]] == [6, 6]


def test_work_in_the_background_has_its_output_once_it_was_waited_for(ranks: Any) -> None:
    for dump in ranks:
        at_once, later, never = (dump.data[f"MintDistributed.all_reduce.{number}.forward"] for number in (1, 2, 3))
        assert at_once["output"][0]["Max"] == 6 and "waited_after" not in at_once
        assert later["output"][0]["Max"] == 3 and later["waited_after"] == "Mint.abs.1.forward"
        assert "output" not in never and "waited_after" not in never


@pytest.mark.parametrize("module", ["mindspore.mint.distributed", "mindspore.communication.comm_func"])
def test_a_send_or_receive_of_a_batch_is_described_with_its_tensor(backend: Any, module: str) -> None:
    distributed, tensor = importlib.import_module(module), backend.tensor(np.ones(2, np.float32))
    # The CPU has no kernel for a whole batch.
    entry = backend.adapter.tensors.describe_value(distributed.P2POp(distributed.irecv, tensor, 3), None)
    assert entry.pop("tensor") is tensor
    assert entry == {"type": "torch.distributed.P2POp", "op": "irecv", "peer": 3, "tag": 0, "group_id": None}
