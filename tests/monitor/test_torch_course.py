"""Faults planted into trainings, by both monitors, named in the headline of the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from monitored import monitor
from torch import nn
from torch.nn import functional as F

from probe.api.monitoring.second import TrainerMonitorV2
from probe.monitor.judging import JudgedRun, judge_run
from probe.monitor.monitor_run import read_monitor

STEPS, FROM = 24, 14


class Words(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.body, self.head = nn.Embedding(12, 8), nn.Linear(8, 8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(self.tok(ids))))


class Monitored:
    """A model under one of the monitors."""

    def __init__(self, version: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        ops = ["norm", "mean"]
        if version == 1:
            families = ("xy_distribution", "wg_distribution", "mv_distribution", "param_distribution")
            first = monitor(model, optimizer, **dict.fromkeys(families, True), ops=ops, step_count_per_record=100)
            self.stop, self.folder = first.stop, "monitor_output"
            return
        names = ("module", "weight_grad", "optimizer", "param")
        Path("out").mkdir()
        monitors = {name: {"enabled": True, "ops": ops} for name in names}
        content = {"output_dir": "out", "step_count_per_record": 100, "monitors": monitors}
        Path("config.json").write_text(json.dumps(content))
        second = TrainerMonitorV2("config.json", fr="pytorch")
        second.start(model=model, optimizer=optimizer)
        self.stop, self.folder = second.stop, "out"

    def report(self) -> JudgedRun:
        self.stop()
        return judge_run(read_monitor(self.folder))


def words_trained(version: int, fault: Callable[[Words, torch.optim.Optimizer], Any], optimizer: str) -> JudgedRun:
    torch.manual_seed(0)
    model = Words()
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    made: Any = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2, **options)
    monitored = Monitored(version, model, made)
    for step in range(STEPS):
        if step == FROM:
            fault(model, made)
        ids = torch.randint(0, 12, (8, 6))
        made.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), ((ids + 1) % 12).flatten()).backward()
        made.step()
    return monitored.report()


def _part(model: Words, optimizer: torch.optim.Optimizer) -> None:
    model.head.weight = nn.Parameter(model.tok.weight.detach().clone())


def _zero(model: Words, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        for name, value in state.items():
            if name != "step":
                value.zero_()


def _beta2(model: Words, optimizer: torch.optim.Optimizer) -> None:
    saved = optimizer.state_dict()
    saved["param_groups"][0]["betas"] = (0.9, 0.5)
    optimizer.load_state_dict(saved)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("fault", "optimizer", "words"),
    [
        (lambda model, optimizer: optimizer.state.clear(), "AdamW", "optimizer state starts anew"),
        (lambda model, optimizer: optimizer.state.clear(), "SGD", "optimizer state starts anew"),
        (_zero, "Adam", "optimizer state starts anew"),
        (_part, "Adam", "tied weights part: tok.weight = head.weight"),
        (_beta2, "AdamW", "beta2 changes from 0.999 to 0.5"),
        (lambda model, optimizer: optimizer.param_groups[0].update(weight_decay=100.0), "AdamW", "from 0.01 to 100"),
        (lambda model, optimizer: None, "AdamW", "no alert"),
    ],
)
def test_the_headline_names_the_fault(version: int, fault: Any, optimizer: str, words: str) -> None:
    judged = words_trained(version, fault, optimizer)
    assert words in judged.headline
    assert judged.first is None or judged.first.step == FROM


@pytest.mark.parametrize("version", [1, 2])
def test_one_bad_batch_is_the_input_and_not_a_moment(version: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    monitored = Monitored(version, model, optimizer)
    for step in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 8) * (1e4 if step == 9 else 1)).pow(2).mean().backward()
        optimizer.step()
    judged = monitored.report()
    assert judged.first is not None
    assert (judged.first.name, judged.first.step) == ("0.input" if version == 1 else "0.input.0", 9)
    assert len(judged.incidents) == 1 and judged.feeding == []


def test_a_loss_scale_that_collapses_is_named_though_no_step_is_made_any_more() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    monitored = Monitored(1, model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 4)).square().mean() * (float("inf") if step >= FROM else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    judged = monitored.report()
    assert "the loss scale collapses: it falls from 65536 to" in judged.headline
    assert judged.first is not None and judged.first.step == FROM


def test_each_monitor_of_version_2_has_its_own_operators() -> None:
    Path("out").mkdir()
    four = ["min", "max", "mean", "norm"]
    monitors = {
        "module": {"enabled": False},
        "weight_grad": {"enabled": True, "ops": ["norm"]},
        "cc": {"enabled": True, "ops": four, "cc_pre_hook": True},
    }
    Path("config.json").write_text(json.dumps({"output_dir": "out", "monitors": monitors}))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        second = TrainerMonitorV2("config.json")
        second.start(model=model, optimizer=optimizer)
        model(torch.randn(2, 2)).sum().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        second.stop()
    finally:
        dist.destroy_process_group()
    headers = {path.name.partition("_step")[0]: path.read_text().splitlines()[0] for path in Path("out").rglob("*.csv")}
    assert headers["weight_grad"].endswith("micro_step,norm")
    assert headers["cc"].endswith("scope,min,max,mean,norm")
