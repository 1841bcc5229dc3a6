"""The direction of gradients: the sketches in files, turns of two runs, replicas with other elements."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from monitored import monitor
from torch import nn

from probe.api.cli import main
from probe.common.numerics.sketch import cosine_interval, sketch
from probe.monitor.alerts.ranks import RankRules
from probe.monitor.alerts.rows import FamilyRows
from probe.monitor.directions import Turn, first_turn
from probe.monitor.monitor_run import MonitorRun, read_monitor

AT = 4
Fault = Callable[[nn.Module, int], object]


def trained(folder: str, fault: Fault = lambda model, step: None, dtype: torch.dtype = torch.float32) -> MonitorRun:
    os.environ["MONITOR_OUTPUT_DIR"] = folder
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(24, 24), nn.LayerNorm(24), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(24, 3)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    made = monitor(model, optimizer, wg_distribution=True, grad_direction=True, step_count_per_record=100)
    for step in range(8):
        x = torch.randn(64, 24, generator=torch.Generator().manual_seed(step)).to(dtype)
        optimizer.zero_grad()
        loss = model(x if dtype is torch.float32 else x.flip(0)).float().square().sum(1).log().mean()
        loss.backward()
        fault(model, step)
        optimizer.step()
    made.stop()
    return read_monitor(folder)


def gradient(model: nn.Module) -> torch.Tensor:
    found = model[6].weight.grad
    assert isinstance(found, torch.Tensor)
    return found


def turned(fault: Fault, dtype: torch.dtype = torch.float32) -> Turn | None:
    return first_turn(trained("faulty", fault, dtype), trained("golden"))


@pytest.fixture(autouse=True)
def output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "golden")


def test_a_row_has_the_sketch_of_the_gradient_and_the_cosine_to_the_step_before() -> None:
    seen: list[np.ndarray] = []
    run = trained("golden", lambda model, step: seen.append(gradient(model).numpy().copy()))

    rows = [next(each for each in run.rows(0, step) if each.family == "grad_direction") for step in range(8)]

    assert rows[0].names[0] == "12.bias", "not in the order of the backward pass"
    at = rows[5].names.index("6.weight")
    assert rows[5].sketches is not None
    np.testing.assert_allclose(rows[5].sketches[at], sketch(seen[5]).sums, rtol=1e-6)
    cosine = cosine_interval(sketch(seen[5]).sums, sketch(seen[4]).sums).estimate
    assert rows[5].values[at, 0] == pytest.approx(cosine, abs=1e-6)
    exact = float((seen[5] * seen[4]).sum() / np.linalg.norm(seen[5]) / np.linalg.norm(seen[4]))
    assert cosine_interval(sketch(seen[5]).sums, sketch(seen[4]).sums).low <= exact


@pytest.mark.parametrize(
    "change",
    [torch.neg, lambda it: it.flip(0), lambda it: it.t().contiguous()],
    ids=["sign", "rows", "transposed"],
)
def test_a_gradient_of_the_same_norm_is_named_with_its_step(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def fault(model: nn.Module, step: int) -> None:
        if step == AT:
            gradient(model).copy_(change(gradient(model).clone()))

    turn = turned(fault)

    assert turn is not None
    assert (turn.step, turn.name, turn.turned, turn.gradients) == (AT, "6.weight", 1, 18)
    assert turn.norm_ratio == pytest.approx(1, abs=1e-5)
    assert turn.low <= turn.cosine <= turn.high < 0.6 < turn.before


def test_a_fault_in_the_first_step_is_seen_beside_the_other_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    turn = turned(lambda model, step: gradient(model).neg_())

    assert turn is not None
    assert (turn.step, turn.name) == (0, "6.weight")
    capsys.readouterr()
    assert main(["monitor", "report", "faulty", "golden"]) == 1
    said = capsys.readouterr().out
    assert "first turn: step 0, rank 0: gradient of 6.weight: cosine -1; the norms agree" in said


def test_another_batch_turns_all_and_names_none() -> None:
    def fault(model: nn.Module, step: int) -> None:
        if step == AT:
            for parameter in model.parameters():
                parameter.grad = None
            (model(torch.randn(64, 24)) - torch.randn(3)).square().mean().backward()

    turn = turned(fault)

    assert turn is not None
    assert (turn.step, turn.name) == (AT, "")
    assert "look at the batch" in turn.hint()


def test_rounding_is_no_turn() -> None:
    # The biases before normalisations have gradients of rounding alone, which point anywhere.
    assert turned(lambda model, step: None, torch.bfloat16) is None


def test_without_the_key_nothing_is_written(folder: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = monitor(model, optimizer, wg_distribution=True)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    made.stop()

    assert not list(folder.rglob("grad_direction*"))
    assert list(folder.rglob("grad_reduced*"))


def test_replicas_whose_gradients_have_the_same_norm_and_other_elements_have_parted() -> None:
    values = np.random.default_rng(0).normal(size=(64, 9)).astype("f4")
    rules = RankRules()

    def rows(step: int, rank: int, array: np.ndarray) -> list[FamilyRows]:
        norm, sums = np.array([[float(np.linalg.norm(values))]]), sketch(array).sums[None].astype(float)
        at = {"step": step, "rank": rank}
        direction = FamilyRows("grad_direction", ("w",), ("cosine",), np.ones((1, 1)), sketches=sums, **at)
        return [FamilyRows("grad_reduced", ("w",), ("norm",), norm, **at), direction]

    assert not rules.judge([*rows(0, 0, values), *rows(0, 1, values)])
    (found,) = rules.judge([*rows(1, 0, values), *rows(1, 1, values[::-1])])
    assert (found.rule, found.rank, found.step, found.op) == ("rank_divergence", 1, 1, "cosine")


def test_the_interval_holds_the_cosine_in_99_of_100_draws() -> None:
    random = np.random.default_rng(1)
    for cosine in (0.0, 0.6, 0.99):
        held = 0
        for _ in range(200):
            one, other = random.normal(size=(2, 1000))
            mixed = cosine * one + np.sqrt(1 - cosine**2) * other
            exact = float(one @ mixed / np.linalg.norm(one) / np.linalg.norm(mixed))
            found = cosine_interval(sketch(one).sums, sketch(mixed).sums)
            held += found.low <= exact <= found.high
        assert held >= 193, cosine
