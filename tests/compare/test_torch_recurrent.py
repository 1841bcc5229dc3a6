"""Recurrent networks in bfloat16, compared with the same networks in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import one_step
import pytest
import torch
from torch import nn
from torch.nn import functional

from probe.compare.output.summary import Summary
from probe.compare.runner import summaries

WIDTH, WORDS = 64, 97


class Network(nn.Module):
    """A model of words. Its weights are those that PyTorch makes, so that its states are small beside its inputs."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layer = getattr(nn, kind)(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(words))[0])


def transposed(model: Any) -> None:
    """The weights of each gate, which are square, are taken the other way round: their statistics are the same."""
    weight = model.layer.weight_hh_l0
    weight.copy_(torch.cat([each.t() for each in weight.split(WIDTH)]))


def rolled(model: Any) -> None:
    model.layer.weight_ih_l0.copy_(model.layer.weight_ih_l0.roll(1, 1))


def dump(path: Path, kind: str, level: str, dtype: torch.dtype, fault: Callable[[Any], None] | None = None) -> Path:
    torch.manual_seed(3)
    model = Network(kind)
    if fault is not None:
        with torch.no_grad():
            fault(model)
    model.to(dtype)
    words = torch.randint(0, WORDS, (4, 32), generator=torch.Generator().manual_seed(1))
    with one_step.collected(model, path, level):
        functional.cross_entropy(model(words).float().flatten(0, 1), words.flatten()).backward()
    return path


def compared(target: Path, golden: Path) -> Summary:
    (found,) = summaries(str(target), str(golden))
    return found


@pytest.mark.sampled()
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_wrong_weight_of_a_recurrent_layer_is_named(tmp_path: Path, kind: str, level: str) -> None:
    golden = dump(tmp_path / "golden", kind, level, torch.float32)
    right = compared(dump(tmp_path / "right", kind, level, torch.bfloat16), golden)
    assert right.answer == "none", right.why
    for fault in (transposed, rolled):
        found = compared(dump(tmp_path / fault.__name__, kind, level, torch.bfloat16, fault), golden)
        assert found.divergence is not None, (fault, found.why)
        assert "layer" in found.divergence.first.module, found.divergence.first
