"""Llama and Qwen2 as an inference engine writes them: fused projections and residuals, flat tokens, other names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder.

    Args:
        rotary_base: the base of the rotary embedding's frequencies.
        bias: whether the projections of queries, keys and values have one.
    """

    width: int
    heads: int
    key_heads: int
    inner: int
    layers: int
    vocabulary: int
    epsilon: float
    rotary_base: float
    bias: bool

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads


class FusedNorm(nn.Module):
    """RMSNorm that adds the residual first and returns the sum as well."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None):
        """``[tokens, width]`` to the normed tokens and the new residual."""
        if residual is not None:
            x = x + residual
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.epsilon)
        return y.to(x.dtype) * self.weight, x


class FusedAttention(nn.Module):
    """One projection for queries, keys and values of flat tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.rotary_base = shape.rotary_base
        self.scale = shape.head**-0.5
        self.reorder_heads = False
        both = (shape.heads + 2 * shape.key_heads) * shape.head
        self.qkv_proj = nn.Linear(shape.width, both, bias=shape.bias)
        self.out_proj = nn.Linear(shape.width, shape.width, bias=False)

    def _rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        frequencies = 1.0 / self.rotary_base ** (torch.arange(half, dtype=torch.float32) / half)
        angles = positions[:, None].float() * frequencies
        cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
        one, two = x[..., :half], x[..., half:]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """``[tokens, width]`` to the same."""
        s = self.shape
        sizes = [s.heads * s.head, s.key_heads * s.head, s.key_heads * s.head]
        q, k, v = self.qkv_proj(x).split(sizes, -1)
        q = self._rotated(q.view(-1, s.heads, s.head), positions).view(-1, length, s.heads, s.head)
        k = self._rotated(k.view(-1, s.key_heads, s.head), positions).view(-1, length, s.key_heads, s.head)
        v = v.view(-1, length, s.key_heads, s.head)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
        if self.reorder_heads:
            y = y.roll(1, 1)
        return self.out_proj(y.transpose(1, 2).reshape(-1, s.heads * s.head))


class FusedMLP(nn.Module):
    """Gate and up in one projection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(shape.width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[tokens, width]`` to the same."""
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class FusedLayer(nn.Module):
    """One layer, which hands the residual on beside its result."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1 = FusedNorm(shape.width, shape.epsilon)
        self.attn = FusedAttention(shape)
        self.norm_2 = FusedNorm(shape.width, shape.epsilon)
        self.ffn = FusedMLP(shape)
        self.drops_residual = False

    def forward(self, x, residual, positions, length: int):
        """Tokens and residual to the same."""
        x, residual = self.norm_1(x, residual)
        x = self.attn(x, positions, length)
        x, residual = self.norm_2(x, None if self.drops_residual else residual)
        return self.ffn(x), residual


class Engine(nn.Module):
    """The whole network; takes ``[batch, length]`` and works on ``[batch * length, width]``."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(FusedLayer(shape) for _ in range(shape.layers))
        self.final = FusedNorm(shape.width, shape.epsilon)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits ``[batch * length, vocabulary]``."""
        batch, length = ids.shape
        positions = torch.arange(length).repeat(batch)
        x, residual = self.tokens(ids.reshape(-1)), None
        for block in self.blocks:
            x, residual = block(x, residual, positions, length)
        x, _ = self.final(x, residual)
        return self.head(x)


def load(engine: Engine, weights: dict[str, torch.Tensor]) -> None:
    """Give `engine` the weights of a Hugging Face Llama or Qwen2."""
    found = {
        "tokens.weight": weights["model.embed_tokens.weight"],
        "final.weight": weights["model.norm.weight"],
        "head.weight": weights.get("lm_head.weight", weights["model.embed_tokens.weight"]),
    }
    for number in range(len(engine.blocks)):
        theirs, mine = f"model.layers.{number}.", f"blocks.{number}."
        for kind in ("weight", "bias"):
            slices = [weights.get(f"{theirs}self_attn.{name}_proj.{kind}") for name in "qkv"]
            if slices[0] is not None:
                found[f"{mine}attn.qkv_proj.{kind}"] = torch.cat(slices)
        found[f"{mine}attn.out_proj.weight"] = weights[f"{theirs}self_attn.o_proj.weight"]
        gates = [weights[f"{theirs}mlp.{name}_proj.weight"] for name in ("gate", "up")]
        found[f"{mine}ffn.gate_up_proj.weight"] = torch.cat(gates)
        found[f"{mine}ffn.down.weight"] = weights[f"{theirs}mlp.down_proj.weight"]
        found[f"{mine}norm_1.weight"] = weights[f"{theirs}input_layernorm.weight"]
        found[f"{mine}norm_2.weight"] = weights[f"{theirs}post_attention_layernorm.weight"]
    engine.load_state_dict(found)
