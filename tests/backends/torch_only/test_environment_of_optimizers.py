"""Hyper-parameters of optimizers in the environment of a run, and what a comparison says of two environments."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer as optimizers

from probe.api import debugger as debuggers
from probe.compare.runner import summaries


def trained(runs: Any, path: Any, seed: int, lr: float, late: bool = False) -> dict[str, Any]:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": lr}, {"params": model[1].parameters(), "weight_decay": 0.5}], lr=0.1
    )
    probe: debuggers.PrecisionDebugger = runs.new(dump_path=path, level="L0")
    for _ in range(2):
        probe.start(model)
        model(torch.arange(8.0).reshape(2, 4)).sum().backward()
        if late:
            probe.stop()
        optimizer.step()
        optimizer.zero_grad()
        probe.stop()
        probe.step()
    assert not optimizers._global_optimizer_pre_hooks
    (file,) = path.glob("environment_*")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_the_first_update_adds_hyper_parameters_also_after_stop(runs: Any) -> None:
    for name in ("early", "late"):
        (optimizer,) = trained(runs, runs.path / name, 1, 0.25, name == "late")["optimizers"]
        assert optimizer["type"] == "AdamW"
        assert [(group["lr"], group["weight_decay"], group["parameters"]) for group in optimizer["groups"]] == [
            (0.25, 0.01, 2),
            (0.1, 0.5, 2),
        ]
        assert optimizer["groups"][0]["betas"] == [0.9, 0.999]


def test_a_comparison_names_what_differs_outside_of_the_model(runs: Any) -> None:
    from probe.compare.output.summary_text import headline

    trained(runs, runs.path / "a", 1, 0.25)
    trained(runs, runs.path / "b", 2, 0.125)
    found = list(summaries(str(runs.path / "a"), str(runs.path / "b")))
    names = [each["text"] for each in found[0].as_json()["environment"]]
    assert names == ["seed 1 (golden: 2)", "lr 0.25 (golden: 0.125)"]
    (first, _), (second, _), *_ = headline(found)
    assert first.startswith("first divergence: ")
    assert second == "  outside of the model: seed 1 (golden: 2); lr 0.25 (golden: 0.125)"
