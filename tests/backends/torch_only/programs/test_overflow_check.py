"""Task ``overflow_check``: several ranks, gradient scalers, masks, and tensors that are written to between calls."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import dumped
import pytest
import torch
import two_processes
from torch import nn
from torch_parts import LEVELS

from probe.api import cli

# Rank 1 takes the logarithm of a negative number in step 3; the gradients of both are added up.
SCRIPT = """
import json, sys, torch, torch.distributed as dist
from torch import nn
from msprobe.pytorch import PrecisionDebugger
rank, port, folder, every = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
if rank == 0:
    json.dump({"task": "overflow_check", "dump_path": folder + "/dump", "level": "L1",
               "overflow_check": {"overflow_nums": 1, "every": every}}, open(folder + "/config.json", "w"))
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
dist.barrier()
debugger = PrecisionDebugger(folder + "/config.json")
torch.manual_seed(0)
model = nn.Linear(4, 4)
for step in range(8):
    debugger.start(model)
    y = model(torch.ones(2, 4))
    y = torch.log(y.abs() + 1.0)
    if step == 3 and rank == 1:
        y = torch.sqrt(y - 100.0)
    y.sum().backward()
    if step != 3:
        dist.all_reduce(model.weight.grad)
    model.zero_grad()
    debugger.stop()
    debugger.step()
print("ended", rank)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("every", [1, 4])
def test_every_rank_writes_the_step_in_which_one_has_found_something(tmp_path: Path, every: int) -> None:
    outputs = two_processes.run(tmp_path, SCRIPT, str(tmp_path), str(every))
    assert all(f"ended {rank}" in output for rank, output in enumerate(outputs)), "\n".join(outputs)
    assert dumped.folders(tmp_path / "dump") == ["step3/rank0", "step3/rank1"]
    assert "[rank 1] [WARNING] step 3: Torch.sqrt.0.forward is the first record" in outputs[1]
    assert "[rank 0] [WARNING] step 3: another rank has a finding" in outputs[0]
    for rank in (0, 1):
        dump = dumped.read(tmp_path / "dump", 3, f"rank{rank}")
        assert not any("all_reduce" in name for name in dump.names), "what the ranks ask each other is no record"
    command = ["overflow_check", "-i", str(tmp_path / "dump" / "step3"), "-o", str(tmp_path / "output")]
    assert cli.main(command) == 1
    report = json.loads((tmp_path / "output" / "overflow_report.json").read_text(encoding="utf-8"))
    first = [(each["rank"], each["record"]) for each in report["steps"][0]["findings"] if each["is_first"]]
    assert first == [(1, "Torch.sqrt.0.forward")]


# What the training exchanges is written to without torch's counting it, and a rank's own failure is its own.
EXCHANGED = """
import datetime, sys, torch, torch.distributed as dist
from msprobe.pytorch import PrecisionDebugger
from probe.backends.torch.hooks import training_hooks
rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=30))
debugger = PrecisionDebugger(task="overflow_check", dump_path=folder + "/dump", level="L1")
asked = training_hooks._group.largest
def fail(numbers):
    raise MemoryError("no memory")
for step in range(4):
    total = torch.full((2,), rank + 1.0)
    if step == 3:
        total = torch.abs(torch.full((100, 100), 3e38))
    debugger.start()
    y = torch.abs(total)
    handle = dist.all_reduce(y, async_op=step == 3)
    if step == 3:
        handle.wait()
    torch.neg(y)
    if step == 2:
        received = torch.zeros(2)
        if rank == 1:
            dist.send(y, 0)
        else:
            handle = dist.irecv(received, 1)
            torch.neg(total)
            handle.wait()
            torch.log(-received)
    debugger.stop()
    training_hooks._group.largest = fail if step == 1 and rank == 0 else asked
    debugger.step()
    sums = torch.full((1,), rank + 1.0)
    dist.all_reduce(sums)
    print("sum", step, sums.item())
print("ended", rank)
dist.barrier()
dist.destroy_process_group()
"""


def test_what_ranks_exchange_is_described_again_and_a_failure_of_one_does_not_meet_the_training(tmp_path: Path) -> None:
    outputs = two_processes.run(tmp_path, EXCHANGED, str(tmp_path))
    for rank, output in enumerate(outputs):
        assert f"ended {rank}" in output, "\n".join(outputs)
        assert [line for line in output.splitlines() if line.startswith("sum")] == [f"sum {n} 3.0" for n in range(4)]
        assert output.count("the ranks can no longer ask each other") == 1
    # Without a word among them, each writes its own.
    assert dumped.folders(tmp_path / "dump") == ["step2/rank0", "step3/rank1"]
    assert dumped.read(tmp_path / "dump", 2, "rank0").data["Distributed.irecv.0.forward"]["waited_after"] == (
        "Torch.neg.1.forward"
    )
    neg = dumped.read(tmp_path / "dump", 3, "rank1").data["Torch.neg.0.forward"]
    assert neg["input_args"][0]["Max"] == math.inf


# --- gradient scalers


def train(debugger: Any, scaler: Any, scales: list[float], clips: bool = False) -> nn.Module:
    """A step for each of `scales`, by which the scaler makes its loss larger."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    for scale in scales:
        scaler._scale = torch.tensor(scale)
        debugger.start(model)
        result = model(torch.ones(3, 4))
        # A small loss with large gradients.
        loss = ((result - result.detach()) * 1e10).sum()
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        debugger.stop()
        scaler.update()
        optimizer.zero_grad()
        debugger.step()
    return model


@pytest.fixture
def scaler() -> Any:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    return scaler


@pytest.mark.parametrize(
    ("settings", "scales", "written"),
    [
        ({"level": "mix"}, [1.0, 1e30, 1.0, 1e30, 1e30], []),
        ({"max_skips": 3}, [1e30, 1e30, 1.0, 1e30, 1e30, 1e30, 1.0], ["step5/procN"]),
        ({"min_scale": 1e30}, [1.0, 1e31, 1e29], ["step2/procN"]),
        # What is not finite in the forward pass is written whatever the scaler does.
        ({}, [1.0, math.inf], ["step1/procN"]),
    ],
)
def test_steps_that_a_scaler_skips_are_counted_and_written_where_they_do_not_end(
    runs: Any, scaler: Any, settings: Any, scales: list[float], written: list[str], capsys: Any
) -> None:
    train(runs.new(**{"task": "overflow_check", "level": "mix", **settings}), scaler, scales)
    runs.end()
    assert dumped.folders(runs.path) == written
    assert written or "skipped 3 steps" in capsys.readouterr().err
    assert torch.cuda.amp.GradScaler.step.__kwdefaults__ is None


@LEVELS
def test_gradients_may_be_clipped_in_a_step_that_is_skipped(runs: Any, scaler: Any, level: str) -> None:
    train(runs.new(task="overflow_check", level=level), scaler, [1.0, 1e30, 1.0], clips=True)
    runs.end()
    assert not runs.path.exists()


def test_without_a_scaler_gradients_that_are_not_finite_are_written(runs: Any) -> None:
    debugger, model = runs.new(task="overflow_check", level="L0"), nn.Sequential(nn.Linear(2, 2))
    debugger.start(model)
    result = model(torch.ones(1, 2))
    ((result - result.detach()) * 1e20 * 1e20).sum().backward()
    debugger.step()
    assert dumped.folders(runs.path) == ["step0/procN"]


# --- what is no fault


class Attention(nn.Module):
    def forward(self, x: Any, mask: Any) -> Any:
        scores = (x @ x.transpose(-1, -2)).masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
        return torch.softmax(scores + mask, -1) @ x


@LEVELS
def test_masks_are_no_fault(runs: Any, level: str) -> None:
    model = nn.ModuleDict({"first": nn.Linear(3, 3), "attention": Attention()})
    debugger = runs.new(task="overflow_check", level=level)
    for _ in range(2):
        debugger.start(model)
        mask = torch.zeros(4, 4)
        mask[:, 3] = float("-inf")
        mask[3, 3] = 0
        model["attention"](model["first"](torch.randn(4, 3)), mask).sum().backward()
        debugger.step()
    runs.end()
    assert not runs.path.exists()


def test_memory_that_was_never_written_is_no_fault(runs: Any) -> None:
    debugger, memory = runs.new(task="overflow_check"), torch.full((4, 4), math.nan)  # what torch.empty may give
    debugger.start()
    for part in memory.view(-1).chunk(2):
        part.fill_(0.0)
    memory.add(1.0)
    debugger.step()
    assert not runs.path.exists()


# --- tensors are described once a step, and again when they were written to


def large(value: float) -> torch.Tensor:
    return torch.full((100, 100), value)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1.0),
        lambda x: x[3:].fill_(2.0),
        lambda x: setattr(x, "data", large(2.0)),
        lambda x: x.set_(large(2.0).untyped_storage(), 0, (100, 100)),
    ],
    ids=["in place", "through a view", "other data", "other memory"],
)
def test_what_was_written_to_is_described_again(runs: Any, write: Any, tmp_path: Path) -> None:
    def program(debugger: Any) -> None:
        x = large(1.0)
        debugger.start()
        y = torch.abs(x)
        torch.neg(y)
        write(y)
        torch.neg(y)
        torch.log(-large(1.0))
        debugger.step()

    program(runs.new(task="overflow_check"))
    watched = runs.read()
    runs.end()
    program(runs.new(dump_path=tmp_path / "other"))
    other = dumped.read(tmp_path / "other").data
    # The watch records functions that are in no list, too.
    listed = {name: record for name, record in watched.data.items() if name in other}
    assert json.dumps(listed) == json.dumps(other)


def test_parameters_are_described_at_each_call(runs: Any) -> None:
    model, debugger = nn.Linear(100, 100), runs.new(task="overflow_check")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    debugger.start()
    for _ in range(2):
        model(torch.ones(2, 100)).sum().backward()
        before = float(model.weight.detach().max())
        optimizer.step()
    torch.log(-large(1.0))
    debugger.step()
    weight = runs.read().data["Functional.linear.1.forward"]["input_args"][1]
    assert weight["Max"] == pytest.approx(before)


def test_a_training_that_is_forked_before_collection_is_watched(runs: Any) -> None:
    debugger = runs.new(task="overflow_check")
    child = os.fork()
    if not child:
        debugger.start()
        torch.log(-torch.ones(2))
        debugger.step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert dumped.folders(runs.path) == ["step0/procN"]
