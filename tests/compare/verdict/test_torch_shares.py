"""Elements that are set to zero at random: another share is a divergence, and other random numbers are none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

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


class Checkpointed(Dropping):
    def __init__(self, share: float, restores: bool) -> None:
        super().__init__(share)
        self.restores = restores

    def forward(self, x: Any) -> Any:
        return self.head(checkpoint(self.drop, x, use_reentrant=False, preserve_rng_state=self.restores))

    def drop(self, x: Any) -> Any:
        return F.dropout(self.first(x), self.share, self.training)


MODELS = {"function": Dropping, "recurrent": Recurrent, "attention": Attentive}
Train = Callable[[str, Callable[[float], nn.Module], float, int], Path]


@pytest.fixture
def train(new_debugger: Any, tmp_path: Path) -> Train:
    def trained(name: str, kind: Callable[[float], nn.Module], share: float, seed: int) -> Path:
        torch.manual_seed(0)
        model, x = kind(share), torch.randn(60, 30, WIDTH)
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


@pytest.mark.parametrize("restores", [True, False])
def test_a_backward_with_other_random_numbers_than_its_forward_is_a_divergence(train: Train, restores: bool) -> None:
    one, other = (partial(Checkpointed, restores=restored) for restored in (restores, True))
    answer = probe.verdict(train("one", one, 0.3, 1), train("other", other, 0.3, 1))
    if restores:
        assert answer.divergence is None, answer.answer
    else:
        assert answer.divergence is not None, answer.answer
        first = answer.divergence.first
        assert first.record == "Functional.dropout.0.backward"
        assert "other random numbers than its forward" in first.cause and "preserve_rng_state" in first.cause
