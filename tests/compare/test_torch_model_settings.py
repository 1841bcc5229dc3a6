"""Settings of a model itself, of whose forward there is no record: a scale between its modules, one of its result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from probe.compare.runner import summaries
from probe.compare.summary import Summary

WIDTH = 16
Change = Callable[[Any], None]


class Net(nn.Module):
    """Computes between its modules and behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale, self.temperature, self.words = 1.0, 1.0, 97
        self.register_buffer("table", torch.linspace(0.5, 2.0, WIDTH), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).tanh() * self.scale) / self.temperature * self.table


@pytest.fixture
def dump(tmp_path: Path, new_debugger: Any) -> Any:
    """Dumps one step of a changed model, in the names of a single model or of a list."""

    def dumped(
        side: str,
        change: Change,
        level: str = "L0",
        trains: bool = False,
        as_list: bool = False,
        kind: type[Net] = Net,
    ) -> Path:
        torch.manual_seed(0)
        model = kind()
        change(model)
        debugger = new_debugger(level=level, dump_path=str(tmp_path / side))
        debugger.start([model] if as_list else model)
        given = torch.linspace(-2, 3, 8 * WIDTH, dtype=torch.float64).reshape(8, WIDTH).sin().float()
        with torch.set_grad_enabled(trains):
            result = model(given)
        if trains:
            result.square().sum().backward()
        debugger.stop()
        debugger.step()
        return tmp_path / side

    return dumped


def nothing(model: Any) -> None:
    """A run without a fault."""


def setting(name: str, value: Any) -> Change:
    def change(model: Any) -> None:
        setattr(model, name, value)

    return change


def table(model: Any) -> None:
    model.table *= 1.01


def answer(target: Path, golden: Path) -> Summary:
    (found,) = summaries(str(target), str(golden))
    return found


@pytest.mark.parametrize("as_list", (False, True))
def test_a_scale_between_modules_is_the_cause_of_what_the_next_one_takes(dump: Any, as_list: bool) -> None:
    target = dump("a", setting("scale", 1.5), as_list=as_list)
    found = answer(target, dump("b", nothing, as_list=as_list))
    assert found.divergence is not None
    first = found.divergence.first
    prefix = "Module.0" if as_list else "Module"
    assert first.record == f"{prefix}.head.Linear.forward.0"
    assert first.cause == f"in {prefix}.Net, scale is 1.5 and in the golden run 1.0"


@pytest.mark.parametrize(("change", "said"), ((setting("temperature", 0.7), "temperature"), (table, "buffer table")))
def test_what_is_used_behind_the_last_module_cannot_be_told(dump: Any, change: Change, said: str) -> None:
    found = answer(dump("a", change), dump("b", nothing))
    assert found.divergence is None and said in found.untold


def test_gradients_show_it(dump: Any) -> None:
    found = answer(dump("a", setting("temperature", 0.7), trains=True), dump("b", nothing, trains=True))
    assert found.divergence is not None
    first = found.divergence.first
    assert "head" in first.record and first.cause == "in Module.Net, temperature is 0.7 and in the golden run 1.0"
