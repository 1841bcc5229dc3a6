"""Two programs for one network, written independently: other names, another layout, sums in other places."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import one_step
import pytest
import torch
from torch import nn
from torch.nn import functional

from probe.compare.output.summary import summarise
from probe.compare.result import ComparisonResult
from probe.compare.runner import compare

WIDTH, INNER, HEADS, TOKENS, LAYERS = 64, 128, 4, 29, 3


class Attention(nn.Module):
    """Heads are an axis of their own; the scores are made by a product and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Any) -> Any:
        query, key, value = (
            layer(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(x.shape))


class FeedForward(nn.Module):
    """Adds the residual itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Any, residual: Any) -> Any:
        found = functional.dropout(self.down(functional.gelu(self.up(x))), p=0, training=self.training)
        return found + residual


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.ffn = Attention(), FeedForward()

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.norm_1(x))
        return self.ffn(self.norm_2(x), x)


class Golden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class SelfAttention(nn.Module):
    """Positions come first; batch and heads are one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale = (WIDTH // HEADS) ** -0.5

    def forward(self, x: Any) -> Any:
        length, batch, _ = x.shape
        query, key, value = (
            layer(x).view(length, batch * HEADS, -1).transpose(0, 1)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        found = functional.scaled_dot_product_attention(query, key, value, scale=self.scale)
        return self.o_proj(found.transpose(0, 1).reshape(length, batch, -1))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))


AFTER = nn.Identity()
"""A default that all layers share, so that all of its calls have the name that it has in the first of them."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.attention, self.drop = nn.LayerNorm(WIDTH), SelfAttention(), nn.Dropout(0.0)
        self.after_attention, self.after_mlp = AFTER, AFTER
        self.mlp_norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: Any) -> Any:
        x = self.after_attention(x + self.drop(self.attention(self.input_norm(x))))
        return self.after_mlp(x + self.drop(self.mlp(self.mlp_norm(x))))


class Target(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.after_embedding = nn.Embedding(TOKENS, WIDTH), nn.Identity()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.final_norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, TOKENS)

    def forward(self, ids: Any) -> Any:
        x = self.after_embedding(self.embed(ids.t()))
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.final_norm(x)).transpose(0, 1)


def golden() -> Golden:
    torch.manual_seed(3)
    model = Golden()
    for name, value in model.state_dict().items():
        noise = torch.randn_like(value)
        is_scale = "norm" in name and name.endswith("weight")
        value.copy_(
            1 + 0.2 * noise if is_scale else 0.2 * noise if value.dim() < 2 else noise / value[0].numel() ** 0.5
        )
    return model


def target() -> Target:
    """The second program with the weights of the first one, in the same order."""
    model = Target()
    weights = golden().state_dict()
    names = (
        ("words", "embed"), ("blocks", "layers"), ("norm_1", "input_norm"), ("norm_2", "mlp_norm"),
        ("attn.query", "attention.q_proj"), ("attn.key", "attention.k_proj"), ("attn.value", "attention.v_proj"),
        ("attn.out", "attention.o_proj"), ("ffn.up", "mlp.fc1"), ("ffn.down", "mlp.fc2"), ("head", "lm_head"),
    )  # fmt: skip
    found = {}
    for name, value in weights.items():
        mine = name if not name.startswith("norm.") else f"final_{name}"
        for its, own in names:
            mine = mine.replace(its, own)
        found[mine] = value
    model.load_state_dict(found)
    return model


def dump(model: Any, path: Path, level: str) -> None:
    ids = torch.randint(0, TOKENS, (3, 7), generator=torch.Generator().manual_seed(1))
    with one_step.collected(model, path, level):
        model(ids).float().square().mean().backward()


def compared(path: Path, level: str, plant: Callable[[Target], Any], dtype: str = "float32") -> ComparisonResult:
    model = target()
    plant(model)
    dump(model.to(getattr(torch, dtype)), path / "target", level)
    dump(golden().to(getattr(torch, dtype)), path / "golden", level)
    (result,) = compare(str(path / "target"), str(path / "golden"))
    return result


def nothing(_: Target) -> None:
    """Leave the program as it is."""


def swap_heads(model: Target) -> None:
    """Give each head the queries of the one before it, so that the statistics of the weight stay."""
    for value in model.layers[1].attention.q_proj.parameters():
        value.data.copy_(value.data.roll(WIDTH // HEADS, 0))


def place(result: ComparisonResult) -> str:
    assert result.divergence is not None
    first = result.divergence.first
    return f"{first.record} {first.module}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", ["mix", "L0"])
def test_both_programs_are_right(tmp_path: Path, level: str, dtype: str) -> None:
    found = summarise(compared(tmp_path, level, nothing, dtype))
    assert found.answer == "none", found.why


def test_in_bfloat16_many_layers_tell_what_none_tells_by_itself(tmp_path: Path) -> None:
    result = compared(tmp_path, "L0", swap_heads, "bfloat16")
    assert summarise(result).answer != "none"
