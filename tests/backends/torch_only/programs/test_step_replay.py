"""Key ``replay_step`` of task ``overflow_check``: the step is run again, and the training notices nothing."""

from __future__ import annotations

import gc
import json
import random
import weakref
from pathlib import Path
from typing import Any

import dumped
import numpy as np
import pytest
import torch
import two_processes
from torch import nn
from torch_parts import LEVELS, bits

from probe.backends.protocol import ReplayError
from probe.backends.torch.step_keeper import TorchStepKeeper

STEPS, PLANTED = 20, 13
FIRST = {"L0": "Module.square.Square.forward.0"}


class Square(nn.Module):
    """Is beyond float32 where `factor` is large."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0
        self.calls: list[float] = []

    def forward(self, x: Any) -> Any:
        self.calls.append(self.factor)
        return x * self.factor * self.factor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4)
        self.square, self.last = Square(), nn.Linear(8, 3)

    def forward(self, x: Any, scale: Any = None) -> Any:
        y = self.square(self.drop(self.norm(self.first(x))))
        return {"y": self.last(y * scale["by"])}


class Trained:
    """A training, and what it has seen and left behind."""

    def __init__(self, debugger: Any = None, micro_steps: int = 1) -> None:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        self.model = Net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.masks: list[Any] = []
        self.accumulated = 0
        self.model.drop.register_forward_hook(lambda module, args, output: self.masks.append(output.detach().clone()))
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self._count)
        for step in range(STEPS):
            self.step(debugger, step, micro_steps)
        self.state = self._state()

    def _count(self, parameter: Any) -> None:
        self.accumulated += 1

    def step(self, debugger: Any, step: int, micro_steps: int) -> None:
        self.model.square.factor = 1e30 if step == PLANTED else 1.0
        self.optimizer.zero_grad()
        if debugger is not None:
            debugger.start(self.model)
        for _ in range(micro_steps):
            x = torch.randn(5, 6) * 2.0
            loss = self.model(x, scale={"by": torch.full((1,), random.random())})["y"].square().mean()
            torch.nan_to_num(loss, nan=1.0, posinf=1.0).backward()
            x.zero_()
        if step != PLANTED:
            self.optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()

    def _state(self) -> list[Any]:
        """Everything that a training goes on from, bit by bit."""
        return bits(
            self.model.state_dict(), [parameter.grad for parameter in self.model.parameters()],
            list(self.optimizer.state.values()), torch.rand(3), np.random.rand(3).tolist(), random.random(),
        )  # fmt: skip


def watching(runs: Any, **settings: Any) -> Any:
    return runs.new(task="overflow_check", replay_step=True, **settings)


@pytest.fixture(scope="module")
def plain() -> Trained:
    return Trained()


def saved(runs: Any, tensor: str) -> Any:
    (folder,) = (runs.path / "replay" / f"step{PLANTED}").iterdir()
    return torch.load(folder / "dump_tensor_data" / f"{tensor}.pt", weights_only=True)


@LEVELS
def test_training_goes_on_bitwise_and_the_tensors_are_there(runs: Any, plain: Trained, level: str, capsys: Any) -> None:
    trained = Trained(watching(runs, level=level))
    assert trained.state == plain.state
    assert dumped.folders(runs.path / "replay") == [f"step{PLANTED}/procN"]
    # The first product of the step is none of the model's, and is not run again.
    name = FIRST.get(level, "Tensor.__mul__.2.forward")
    given = f"{name.replace('.2.', '.1.')}.input.0"
    assert torch.isfinite(saved(runs, given)).all()
    assert not torch.isfinite(saved(runs, f"{name}.output.0")).all()
    # The same mask, of the same batch and parameters, although the program has overwritten them.
    assert len(trained.masks) == STEPS + 1
    assert torch.equal(trained.masks[PLANTED + 1], trained.masks[PLANTED]) and torch.equal(
        saved(runs, given), trained.masks[PLANTED]
    )
    assert f"step {PLANTED} was run again" in capsys.readouterr().err


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_records_say_what_those_of_the_step_say(runs: Any, level: str) -> None:
    Trained(watching(runs, level=level), micro_steps=2)
    step, again = dumped.read(runs.path, PLANTED), dumped.read(runs.path / "replay", PLANTED)
    assert again.head["task"] == "tensor" and 4 < len(again.names) <= len(step.names)
    for name in again.names:
        if level == "L0" or not name.endswith("backward"):
            for field in ("output", "input", "input_args"):
                ours, theirs = (statistics(dump.data[name].get(field)) for dump in (again, step))
                assert ours == theirs, (name, field)


def statistics(value: Any) -> str:
    """The numbers of a record, without the files of the tensors; as text, in which a NaN equals itself."""
    if isinstance(value, dict):
        return str({key: statistics(item) for key, item in value.items() if key != "data_name"})
    return str([statistics(item) for item in value]) if isinstance(value, list) else str(value)


def test_what_the_model_has_is_the_same_object_afterwards(runs: Any, plain: Trained) -> None:
    trained = Trained(watching(runs, level="mix"))
    assert trained.accumulated == plain.accumulated, "nothing is accumulated into .grad"
    assert trained.model.square.calls == plain.model.square.calls, "a list of the model's own"
    for mine, others in zip(trained.model.modules(), plain.model.modules()):
        assert list(vars(mine)) == list(vars(others))
        assert len(mine._forward_hooks) == len(others._forward_hooks) and not mine._forward_pre_hooks
    for mine, others in zip(trained.model.parameters(), plain.model.parameters()):
        assert mine._version == others._version
        assert len(mine._post_accumulate_grad_hooks) == 1
    held = [id(value) for state in trained.optimizer.param_groups for value in state["params"]]
    assert held == [id(parameter) for parameter in trained.model.parameters()]


def test_a_failure_changes_nothing_and_is_told_once(runs: Any, plain: Trained, monkeypatch: Any, capsys: Any) -> None:
    runs.errors_expected = True
    forward = Square.forward

    def fails_again(self: Square, x: Any) -> Any:
        if self.factor > 1.0 and self.factor in self.calls:
            raise ZeroDivisionError("not twice")
        return forward(self, x)

    monkeypatch.setattr(Square, "forward", fails_again)
    trained = Trained(watching(runs, level="mix"))
    assert capsys.readouterr().err.count("ZeroDivisionError: not twice") == 1
    assert trained.state == plain.state
    assert dumped.folders(runs.path)[-1] == f"step{PLANTED}/procN"


def test_with_the_batch_alone_the_parameters_are_those_of_now(runs: Any, plain: Trained, capsys: Any) -> None:
    trained = Trained(watching(runs, level="L0", keep="batch"))
    assert trained.state == plain.state
    assert "with the parameters that it has now" in capsys.readouterr().err


def test_of_a_first_record_outside_of_the_model_only_those_around_it_are_there(runs: Any, capsys: Any) -> None:
    debugger = watching(runs, level="L1")
    debugger.start(model := nn.Linear(4, 4))
    torch.log(-model(torch.ones(2, 4)).square().sum())
    debugger.step()
    dump = dumped.read(runs.path / "replay")
    assert "Functional.linear.0.forward" in dump.names and "Torch.log.0.forward" not in dump.names
    assert "Torch.log.0.forward itself is not run again" in capsys.readouterr().err


def test_a_graph_of_the_users_stays_valid(runs: Any) -> None:
    debugger = watching(runs, level="L0")
    model = nn.Sequential(nn.Linear(4, 4), Square(), nn.Linear(4, 1))
    model[1].factor = 1e30
    debugger.start(model)
    model(torch.ones(2, 4))
    result = nn.functional.linear(torch.ones(2, 4, requires_grad=True), model[0].weight).sum()
    debugger.step()
    assert (runs.path / "replay").exists()
    result.backward()


class Marker:
    """Stands for what a program gives to its model."""


@pytest.mark.parametrize("replays", [True, False])
def test_nothing_is_kept_of_a_step_that_is_over_or_without_the_key(runs: Any, replays: bool) -> None:
    debugger = runs.new(task="overflow_check", level="L0", replay_step=replays)
    model = Net()
    for _ in range(2):
        marker = Marker()
        kept = weakref.ref(marker)
        debugger.start(model)
        model(torch.ones(2, 6), scale={"by": 1.0, "marker": marker})["y"].sum().backward()
        del marker
        debugger.stop()
        assert (kept() is not None) is replays
        debugger.step()
        gc.collect()
        assert kept() is None


SCRIPT = """
import json, sys, torch, torch.distributed as dist
from torch import nn
from msprobe.pytorch import PrecisionDebugger
rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
class Square(nn.Module):
    factor = 1.0
    communicates = False
    def forward(self, x):
        if self.communicates:
            dist.all_reduce(x.detach().clone())
        return x * self.factor * self.factor
def train(watched):
    torch.manual_seed(rank)
    inner = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), Square(), nn.Linear(6, 1))
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.Adam(inner.parameters(), 0.01)
    debugger = PrecisionDebugger(folder + "/config.json", dump_path=folder + "/" + watched) if watched else None
    for step in range(6):
        inner[3].factor = 1e30 if step == 3 and rank == 1 else 1.0
        if debugger:
            debugger.start(model)
        loss = model(torch.randn(5, 4)).square().mean()
        torch.nan_to_num(loss, nan=1.0, posinf=1.0).backward()
        if step != 3:
            optimizer.step()
        optimizer.zero_grad()
        if debugger:
            debugger.stop()
            debugger.step()
    if debugger:
        debugger.reset()
    return [value.numpy().tobytes() for value in (*inner.state_dict().values(), torch.get_rng_state())]
plain = train("")
print("alone the same" if plain == train("alone") else "different", rank)
Square.communicates = True
print("together the same" if plain == train("together") else "different", rank)
dist.barrier()
dist.destroy_process_group()
"""


def test_one_rank_runs_its_step_again_without_the_others(tmp_path: Path) -> None:
    settings = {"task": "overflow_check", "level": "mix", "overflow_check": {"replay_step": True, "overflow_nums": 2}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    outputs = two_processes.run(tmp_path, SCRIPT, str(tmp_path))
    for rank, output in enumerate(outputs):
        assert f"alone the same {rank}" in output and f"together the same {rank}" in output, "\n".join(outputs)
    assert "step 3 is not run again: no record of this process" in outputs[0]
    assert dumped.folders(tmp_path / "alone" / "replay") == ["step3/rank1"]
    assert not dumped.read(tmp_path / "alone" / "replay", 3, "rank1").errors
    assert outputs[1].count("step 3 is not run again: the model communicates with other ranks") == 1


def test_a_model_that_cannot_be_run_again_leaves_no_hook_on_the_models_before_it() -> None:
    before = nn.Linear(2, 2)
    with pytest.raises(ReplayError, match="communicates"):
        TorchStepKeeper(False, dict, lambda *_: None).attach([before, nn.SyncBatchNorm(2)])
    assert not before._forward_pre_hooks and not before._forward_hooks
