"""Eleven small models with a step of each: layers of torch, and models that others wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


class Made(NamedTuple):
    """A model, the classes of the modules that are checked, and a step that returns the loss."""

    model: nn.Module
    classes: tuple[type, ...]
    step: Callable[[nn.Module], torch.Tensor]


class Feed(nn.Module):
    """A block with a norm, a gelu and dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.contract(nn.functional.gelu(self.expand(self.norm(x)))))


class Normed(nn.Module):
    """A gated block of short floats whose norm is computed in float32, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width))
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        hidden = self.weight * wide.to(x.dtype)
        return x + self.down(nn.functional.silu(self.gate(hidden)) * self.up(hidden))


class Attention(nn.Module):
    """Attention written out, with a softmax in float32."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.reshape(*each.shape[:2], self.heads, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype)
        return x + self.out((weights @ v).transpose(1, 2).reshape(x.shape))


class Convolved(nn.Module):
    """A convolution with batch normalisation."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.norm(self.conv(x)))


class Grouped(nn.Module):
    """A residual block of a diffusion model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(nn.functional.silu(self.norm(x)))


class Logits(nn.Module):
    """A head whose logits are float32, of short floats."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(self.head(x).to(torch.float32), -1)


def _square(x: torch.Tensor) -> Callable[[nn.Module], torch.Tensor]:
    def step(model: nn.Module) -> torch.Tensor:
        loss: torch.Tensor = model(x).float().square().mean()
        loss.backward()
        return loss

    return step


def mlp() -> Made:
    return Made(nn.Sequential(Feed(32), Feed(32), Feed(32)), (Feed,), _square(torch.randn(16, 32)))


def attention() -> Made:
    model = nn.Sequential(Attention(32, 4), Feed(32), Attention(32, 4))
    return Made(model, (Attention, Feed), _square(torch.randn(2, 12, 32)))


def gated_bf16() -> Made:
    model = nn.Sequential(Normed(48), Normed(48), Logits(48, 64)).to(torch.bfloat16)
    return Made(model, (Normed, Logits), _square(torch.randn(4, 16, 48, dtype=torch.bfloat16)))


def gated() -> Made:
    return Made(nn.Sequential(Normed(48), Normed(48)), (Normed,), _square(torch.randn(4, 16, 48)))


def convolved() -> Made:
    model = nn.Sequential(Convolved(3, 8), Convolved(8, 8), Convolved(8, 4))
    return Made(model, (Convolved,), _square(torch.randn(4, 3, 10, 10)))


def grouped() -> Made:
    return Made(nn.Sequential(Grouped(8), Grouped(8)), (Grouped,), _square(torch.randn(2, 8, 12, 12)))


def autocast() -> Made:
    model, x = nn.Sequential(Feed(32), Feed(32)), torch.randn(16, 32)

    def step(model: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: torch.Tensor = model(x).float().square().mean()
        loss.backward()
        return loss

    return Made(model, (Feed,), step)


def encoder() -> Made:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    return Made(nn.Sequential(layer), (nn.TransformerEncoderLayer,), _square(torch.randn(2, 10, 32)))


def of_words(model: Any, words: int) -> Callable[[nn.Module], torch.Tensor]:
    """A step of a language model on random words."""
    ids = torch.randint(0, words, (2, 12))

    def step(model: Any) -> torch.Tensor:
        loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss

    return step


def gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False))
    return Made(model, (GPT2Block,), of_words(model, 64))


def llama_bf16() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    return Made(model, (LlamaDecoderLayer,), of_words(model, 64))


def bert() -> Made:
    from transformers import BertConfig, BertForMaskedLM
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    return Made(model, (BertLayer,), of_words(model, 64))


OF_TORCH = {
    "mlp": mlp, "attention": attention, "gated": gated, "gated, bfloat16": gated_bf16, "batch norm": convolved,
    "group norm": grouped,
    "autocast": autocast, "nn.TransformerEncoderLayer": encoder,
}  # fmt: skip
OF_TRANSFORMERS = {"GPT-2": gpt2, "Llama, bfloat16": llama_bf16, "BERT": bert}
MODELS: dict[str, Callable[[], Made]] = {**OF_TORCH, **OF_TRANSFORMERS}


def made(name: str, seed: int) -> Made:
    """The model of this name, and the same one for the same seed."""
    torch.manual_seed(seed)
    return MODELS[name]()
