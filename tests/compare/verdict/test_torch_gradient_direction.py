"""The direction of a gradient of a parameter that diverges is in the answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from probe.api.cli import main
from probe.api.pytorch import PrecisionDebugger


def collect(folder: Path, change: Callable[[torch.Tensor], torch.Tensor] | None) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
    if change is not None:
        model[2].weight.register_hook(change)
    debugger = type("Debugger", (PrecisionDebugger,), {"_instance": None})(dump_path=str(folder), level="L0")
    debugger.start(model)
    model(torch.randn(64, 32)).square().mean().backward()
    debugger.stop()
    debugger.step()
    debugger.reset()
    return str(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (torch.neg, "cosine -1 to the golden run's, the same norm"),
        (lambda gradient: gradient / 1.6, "cosine 1 to the golden run's, 0.625 times the norm"),
        # The size is said once.
        (lambda gradient: gradient / 2, "; its norm is 1/2 of that of the golden run; cosine 1 to the golden run's"),
    ],
    ids=["sign", "less", "half"],
)
def test_a_gradient_that_points_elsewhere_has_its_cosine(
    change: Callable[[torch.Tensor], torch.Tensor], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [collect(tmp_path / "target", change), collect(tmp_path / "golden", None)]
    capsys.readouterr()
    assert main(["compare", *paths, "-o", str(tmp_path / "out"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    first = found["divergence"]["first"]
    assert first["record"] == "Module.2.Linear.parameters_grad.0"
    assert first["reason"].endswith(said)
