"""Steps of torch's optimizers: their variants, closures, gradient scalers, and programs with several of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from printed_json import hold_to_schema
from torch.optim import optimizer as optimizers

import probe
from probe.api.cli import main
from probe.common.dump.update_file import Update
from probe.common.errors import DumpFormatError
from probe.common.numerics.sketch import sketch

SEED = 11
LONG = os.environ.get("PROBE_TEST_LONG") == "1"
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda given: torch.optim.SGD(given, lr=0.1),
    "momentum": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW single": lambda given: torch.optim.AdamW(given, foreach=False),
    "AdamW foreach": lambda given: torch.optim.AdamW(given, foreach=True),
    "AdamW fused": lambda given: torch.optim.AdamW(given, fused=True),
    "AdamW tensor lr": lambda given: torch.optim.AdamW(given, lr=torch.tensor(0.001), foreach=False),
    "Adagrad": lambda given: torch.optim.Adagrad(given),
    "RMSprop": lambda given: torch.optim.RMSprop(given),
}


def network() -> torch.nn.Sequential:
    torch.manual_seed(SEED)
    return torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))


def copies(model: torch.nn.Module) -> dict[str, Any]:
    return {name: each.detach().numpy().astype(np.float64) for name, each in model.named_parameters()}


def gradients(model: torch.nn.Module) -> dict[str, Any]:
    given = {name: each.grad for name, each in model.named_parameters()}
    return {name: each.numpy().astype(np.float64) for name, each in given.items() if each is not None}


def loss(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.linspace(-1, 1, 24).reshape(4, 6)).square().sum()


def recorded(runs: Any, model: Any, train: Callable[[], None], step: int = 0) -> list[Update]:
    debugger = runs.debugger if hasattr(runs, "debugger") else runs.new(level="L0")
    runs.debugger = debugger
    debugger.start(model)
    train()
    debugger.stop()
    debugger.step()
    dump = probe.read(runs.path / f"step{step}")
    assert isinstance(dump, probe.Dump)
    return dump.updates


def check(update: Update, before: dict[str, Any], after: dict[str, Any], taken: dict[str, Any]) -> None:
    assert [each.name for each in update.parameters] == list(taken)
    for each in update.parameters:
        change = after[each.name] - before[each.name]
        size = float(np.linalg.norm(after[each.name]) + np.linalg.norm(before[each.name]))
        assert each.gradient_norm == pytest.approx(np.linalg.norm(taken[each.name]), rel=1e-6)
        assert each.parameter_norm == pytest.approx(np.linalg.norm(after[each.name]), rel=1e-6)
        assert each.update is not None and each.update_norm is not None and each.gradient is not None
        np.testing.assert_allclose(each.update.sums, sketch(change).sums, rtol=0, atol=2e-7 * size)
        taken_sums = sketch(taken[each.name]).sums
        np.testing.assert_allclose(each.gradient.sums, taken_sums, rtol=0, atol=3e-7 * each.gradient_norm)
        assert each.update_norm.low <= np.linalg.norm(change) * (1 + 1e-6)
        assert each.update_norm.high >= np.linalg.norm(change) * (1 - 1e-6)


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_kind_of_optimizer(runs: Any, kind: str) -> None:
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    for step in range(2):
        before = copies(model)

        def train() -> None:
            optimizer.zero_grad()
            loss(model).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()

        (update,) = recorded(runs, model, train, step)
        check(update, before, copies(model), gradients(model))
        assert sum(each.gradient_norm**2 for each in update.parameters) == pytest.approx(0.25, rel=1e-3)
        assert update.optimizer == type(optimizer).__name__
        assert update.groups[0]["lr"] == pytest.approx(float(optimizer.param_groups[0]["lr"]))
        counted = [None if "SGD" in update.optimizer else step + 1.0] * 4
        assert [each.state_step for each in update.parameters] == counted


def test_closure_takes_the_last_gradient(runs: Any) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    before = copies(model)
    (update,) = recorded(runs, model, lambda: optimizer.step(closure))  # type: ignore[arg-type]
    check(update, before, copies(model), gradients(model))


def test_groups_frozen_and_tied_parameters(runs: Any) -> None:
    model = network()
    model.add_module("3", torch.nn.Tanh())
    model.add_module("4", torch.nn.Linear(3, 6))
    model.add_module("5", model[0])
    model[2].bias.requires_grad_(False)
    first, second = [model[0].weight, model[0].bias], [model[2].weight, model[2].bias, *model[4].parameters()]
    optimizer = torch.optim.SGD([{"params": first, "lr": 0.1}, {"params": second, "lr": 0.2, "momentum": 0.5}], lr=1.0)

    def train() -> None:
        loss(model).backward()
        optimizer.step()

    before = copies(model)
    (update,) = recorded(runs, model, train)
    check(update, before, copies(model), gradients(model))
    assert [(each.name, each.group) for each in update.parameters] == [
        ("0.weight", 0), ("0.bias", 0), ("2.weight", 1), ("4.weight", 1), ("4.bias", 1),
    ]  # fmt: skip
    assert [(group["lr"], group["momentum"], group["parameters"]) for group in update.groups] == [
        (0.1, 0, 2),
        (0.2, 0.5, 4),
    ]


def test_several_optimizers_in_one_step_and_one_that_raises(runs: Any) -> None:
    class Raises(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("the program's own")

    model = network()
    one, other = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.AdamW(model[2].parameters())

    def train() -> None:
        for optimizer in (one, other, one):
            loss(model).backward()
            optimizer.step()
        with pytest.raises(RuntimeError, match="the program's own"):
            Raises(model.parameters(), lr=0.1).step()

    found = recorded(runs, model, train)
    assert [(each.optimizer, each.index) for each in found] == [("SGD", 0), ("AdamW", 1), ("SGD", 0)]
    assert [len(each.parameters) for each in found] == [2, 2, 2]


@pytest.mark.parametrize("fused", [False, True])
def test_step_that_a_scaler_skips_is_marked(runs: Any, fused: bool) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(loss(model) * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    before = copies(model)
    (skipped,) = recorded(runs, model, lambda: train(float("inf")))
    assert skipped.skipped and all(each.update_norm.estimate == 0 for each in skipped.parameters if each.update_norm)
    for name, value in copies(model).items():
        np.testing.assert_array_equal(value, before[name])
    (taken,) = recorded(runs, model, lambda: train(1.0), 1)
    assert not taken.skipped
    loss_of_copy = network()
    loss(loss_of_copy).backward()
    expected = [float(each.grad.norm()) for each in loss_of_copy.parameters() if each.grad is not None]
    assert [each.gradient_norm for each in taken.parameters] == pytest.approx(expected, rel=1e-5)


def test_sparse_gradient_is_said_to_have_no_sketch(runs: Any) -> None:
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Embedding(30, 5, sparse=True), torch.nn.Linear(5, 2))
    optimizer = torch.optim.SparseAdam([model[0].weight])

    def train() -> None:
        model(torch.tensor([1, 4, 4])).sum().backward()
        optimizer.step()

    (update,) = recorded(runs, model, train)
    (row,) = update.parameters
    assert row.name == "0.weight" and row.gradient is None and "no sketch" in str(row.note)
    assert row.gradient_norm > 0 and row.update_norm is not None and row.update_norm.estimate > 0


def test_hook_of_the_optimizer_may_change_gradients(runs: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def clip(*_: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)

    handle = optimizer.register_step_pre_hook(clip)

    def train() -> None:
        loss(model).backward()
        optimizer.step()

    before = copies(model)
    (update,) = recorded(runs, model, train)
    handle.remove()
    check(update, before, copies(model), gradients(model))


def test_step_that_ends_in_a_hook_of_the_optimizer_has_its_update(runs: Any) -> None:
    model, debugger = network(), runs.new(level="L0")
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_post_hook(lambda *_: (debugger.stop(), debugger.step())[0])
    before = copies(model)
    debugger.start(model)
    loss(model).backward()
    optimizer.step()
    dump = probe.read(runs.path / "step0")
    assert isinstance(dump, probe.Dump)
    (update,) = dump.updates
    check(update, before, copies(model), gradients(model))


def test_show_prints_a_line_for_each_parameter(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        loss(model).backward()
        optimizer.step()

    (update,) = recorded(runs, model, train)
    capsys.readouterr()
    assert main(["show", str(runs.path), "--updates"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "optimizer 0: AdamW" in lines and any(line.startswith("  group 0: lr = 0.001") for line in lines)
    (row,) = (line for line in lines if line.split()[:3] == ["0.bias", "0", "1"])
    assert f"{update['0.bias'].gradient_norm:.4g}" in row
    assert main(["show", str(runs.path), "--updates", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    hold_to_schema(printed, "show --updates")
    (shown,) = printed
    assert [each["name"] for each in shown["updates"][0]["parameters"]] == [each.name for each in update.parameters]


def test_damaged_file_is_one_clear_error(runs: Any) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        loss(model).backward()
        optimizer.step()

    recorded(runs, model, train)
    (path,) = runs.path.glob("step0/*/updates.npz")
    content = path.read_bytes()
    draws = np.random.default_rng(SEED)
    for _ in range(200 if LONG else 50):
        damaged = bytearray(content)
        for at in draws.integers(len(content), size=3):
            damaged[at] = draws.integers(256)
        path.write_bytes(damaged[: draws.integers(1, len(content) + 1)] if draws.random() < 0.3 else damaged)
        dump = probe.read(path.parent)
        assert isinstance(dump, probe.Dump)
        try:
            assert isinstance(dump.updates, list)
        except DumpFormatError as error:
            assert str(path) in str(error), f"seed {SEED}"


# --- hyper-parameters in the environment of a run


def trained(runs: Any, path: Path, seed: int, lr: float, late: bool = False) -> Any:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    groups = [{"params": model[0].parameters(), "lr": lr}, {"params": model[1].parameters(), "weight_decay": 0.5}]
    optimizer, debugger = torch.optim.AdamW(groups, lr=0.1), runs.new(dump_path=path, level="L0")
    for _ in range(2):
        debugger.start(model)
        model(torch.arange(8.0).reshape(2, 4)).sum().backward()
        if late:
            debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    assert not optimizers._global_optimizer_pre_hooks
    (file,) = path.glob("environment_*")
    return json.loads(file.read_text())


def test_the_first_update_adds_hyper_parameters_also_after_stop_and_a_comparison_names_them(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(runs.path / name) for name in ("early", "late")]
    for path, seed, lr in ((paths[0], 1, 0.25), (paths[1], 2, 0.125)):
        (optimizer,) = trained(runs, Path(path), seed, lr, seed == 2)["optimizers"]
        assert optimizer["type"] == "AdamW" and optimizer["groups"][0]["betas"] == [0.9, 0.999]
        found = [(group["lr"], group["weight_decay"], group["parameters"]) for group in optimizer["groups"]]
        assert found == [(lr, 0.01, 2), (0.1, 0.5, 2)]
    capsys.readouterr()
    main(["compare", "-tp", paths[0], "-gp", paths[1], "-o", str(runs.path / "compared")])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "outside of the model" in line]
    assert "seed 1 (golden: 2)" in line and "lr 0.25 (golden: 0.125)" in line
