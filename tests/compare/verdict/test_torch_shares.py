"""Elements that are set to zero at random: another share is a divergence, and other random numbers are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probe

WIDTH = 16


class Dropping(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.first, self.share, self.head = nn.Linear(WIDTH, WIDTH), share, nn.Linear(WIDTH, 4)

    def forward(self, x: Any) -> Any:
        return self.head(F.dropout(self.first(x), self.share, self.training))


class Recurrent(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.cells, self.head = nn.GRU(WIDTH, WIDTH, 2, dropout=share), nn.Linear(WIDTH, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.cells(x)[0])


class Attentive(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(WIDTH, 2, dropout=share), nn.Linear(WIDTH, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.attention(x, x, x)[0])


MODELS = {"function": Dropping, "recurrent": Recurrent, "attention": Attentive}
Train = Callable[[str, type[nn.Module], float, int], Path]


@pytest.fixture
def train(new_debugger: Any, tmp_path: Path) -> Train:
    def trained(name: str, kind: type[nn.Module], share: float, seed: int) -> Path:
        torch.manual_seed(0)
        model, x = kind(share), torch.randn(6, 3, WIDTH)
        torch.manual_seed(seed)
        debugger = new_debugger(dump_path=str(tmp_path / name), task="statistics", level="mix")
        debugger.start(model)
        model(x).square().mean().backward()
        debugger.stop()
        debugger.step()
        return tmp_path / name

    return trained


@pytest.mark.parametrize("model", MODELS)
def test_another_share_is_the_divergence_at_the_call_that_drops(train: Train, model: str) -> None:
    kind = MODELS[model]
    answer = probe.verdict(train("one", kind, 0.3, 1), train("other", kind, 0.1, 1))
    assert answer.divergence is not None, answer.answer
    place = answer.divergence.first.record.lower()
    assert any(word in place for word in ("dropout", "gru", "attention")), answer.answer


@pytest.mark.parametrize("model", MODELS)
def test_other_random_numbers_are_no_divergence(train: Train, model: str) -> None:
    kind = MODELS[model]
    answer = probe.verdict(train("one", kind, 0.3, 1), train("other", kind, 0.3, 2))
    assert answer.divergence is None, answer.answer
