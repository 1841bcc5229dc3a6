"""Two processes that msrun starts; one run serves every test."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any

import dumped
import mindspore_cluster
import numpy as np
import pytest

SCRIPT = """
import json, random
import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn
from mindspore.communication import get_rank
from msprobe.mindspore import PrecisionDebugger
from probe.api.randomness import random_save
from probe.backends.mindspore import randomness

ms.set_device("CPU")
random_save(randomness.random_calls(), randomness.rank, "out")
random.random()
# Before it is initialized MindSpore says that every process is rank 0.
print("RANK", randomness.rank(), flush=True)
debugger = PrecisionDebugger(dump_path="dump", level="mix", task="tensor")
model = nn.SequentialCell(nn.Dense(3, 2))
debugger.start(model)
mint.abs(Tensor(np.ones(2, np.float32)))
debugger.stop()
mindspore_cluster.join()
random.random()
print("RANK", randomness.rank(), flush=True)
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

# Rank 1 takes the logarithm of negative numbers in step 1.
PrecisionDebugger.reset()
with open(f"config{get_rank()}.json", "w") as stream:
    json.dump({"task": "overflow_check", "dump_path": "watched", "level": "L1"}, stream)
debugger = PrecisionDebugger(f"config{get_rank()}.json")
for step in range(4):
    debugger.start()
    x = mint.abs(Tensor(np.ones(2, np.float32)))
    if step == 1 and get_rank() == 1:
        x = mint.log(mint.neg(x))
    debugger.stop()
    debugger.step()
print("ended")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mindspore_cluster.run(tmp_path_factory.mktemp("msrun"), SCRIPT)


@pytest.fixture
def ranks(folder: Path) -> Any:
    return [dumped.read(folder / "dump", 0, f"rank{rank}") for rank in (0, 1)]


@pytest.fixture
def logs(folder: Path) -> list[str]:
    return [(folder / "logs" / f"worker_{number}.log").read_text(encoding="utf-8") for number in (0, 1)]


def test_the_program_computes_what_it_computes_without_the_tool(logs: list[str]) -> None:
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


def test_every_rank_writes_the_step_in_which_one_has_found_something(folder: Path, logs: list[str]) -> None:
    assert all("ended" in log for log in logs), logs
    assert dumped.folders(folder / "watched") == ["step1/rank0", "step1/rank1"]
    assert dumped.read(folder / "watched", 1, "rank0").names == ["Mint.abs.0.forward"]
    told = "".join(logs)
    assert "[rank 1] [WARNING] step 1: Mint.log.0.forward is the first record" in told
    assert "[rank 0] [WARNING] step 1: another rank has a finding" in told


def test_the_file_of_random_save_takes_the_rank_that_communication_gives(folder: Path, logs: list[str]) -> None:
    said = [log.split("RANK ")[1:] for log in logs]
    assert sorted([first.split()[0], second.split()[0]] for first, second in said) == [["None", "0"], ["None", "1"]]
    names = [path.name.split("_")[1] for path in (folder / "out").iterdir()]
    # The scheduler of the job, which runs the script too, is none of the ranks.
    assert sorted(name for name in names if name.startswith("rank")) == ["rank0", "rank1"]
    for path in (folder / "out").glob("random_rank*"):
        with path.open(encoding="utf-8-sig", newline="") as stream:
            names = [row[0] for row in csv.reader(stream)]
        # The weights of the model draw from numpy.
        drawn = [name for name in names if name.startswith("python_random")]
        assert drawn == ["python_random.random.0", "python_random.random.1"]


@pytest.mark.parametrize("module", ["mindspore.mint.distributed", "mindspore.communication.comm_func"])
def test_a_send_or_receive_of_a_batch_is_described_with_its_tensor(backend: Any, module: str) -> None:
    distributed, tensor = importlib.import_module(module), backend.tensor(np.ones(2, np.float32))
    # The CPU has no kernel for a whole batch.
    entry = backend.adapter.tensors.describe_value(distributed.P2POp(distributed.irecv, tensor, 3), None)
    assert entry.pop("tensor") is tensor
    assert entry == {"type": "torch.distributed.P2POp", "op": "irecv", "peer": 3, "tag": 0, "group_id": None}
