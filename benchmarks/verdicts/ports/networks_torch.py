"""Five small networks in plain torch, which mindtorch runs as well, and what a port of them may get wrong.

A network takes a `Port`, which says by how much it deviates; the golden run takes ``Port()``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from port_settings import CLASSES, DEPTH, HEADS, LENGTH, WIDTH, WORDS, Port


class ConvolutionalNet(nn.Module):
    """Two convolutions with batch normalisation and a classifier."""

    def __init__(self, port: Port) -> None:
        super().__init__()
        momentum = 0.9 if port.has("momentum convention") else 0.1
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8, momentum=momentum)
        padding = 0 if port.has("conv padding") else 1
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=padding)
        self.moved = port.has("conv padding")
        self.bn2 = nn.BatchNorm2d(16, momentum=momentum)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, images: Any) -> Any:
        x = F.relu(self.bn1(self.conv1(images)))
        if self.moved:
            x = F.pad(x, (0, 1, 0, 1))  # As pad_mode="same" does with a stride of 2.
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


class BertSelfAttention(nn.Module):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.scale = 1.0 / (WIDTH // HEADS) if port.has("attention scale") else 1.0 / math.sqrt(WIDTH // HEADS)

    def forward(self, x: Any, mask: Any) -> Any:
        query, key, value = (split_heads(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2)) * self.scale + mask
        return join_heads(torch.matmul(F.softmax(scores, dim=-1), value))


class BertLayer(nn.Module):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.attention = BertSelfAttention(port)
        self.output = nn.Linear(WIDTH, WIDTH, bias=not port.has("missing bias"))
        self.norm1 = nn.LayerNorm(WIDTH, eps=port.bert_epsilon)
        self.intermediate = nn.Linear(WIDTH, 4 * WIDTH)
        self.activation = nn.GELU()
        self.dense = nn.Linear(4 * WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH, eps=port.bert_epsilon)
        self.dropout = nn.Dropout(port.dropout)

    def forward(self, x: Any, mask: Any) -> Any:
        x = self.norm1(x + self.dropout(self.output(self.attention(x, mask))))
        return self.norm2(x + self.dropout(self.dense(self.activation(self.intermediate(x)))))


class Bert(nn.Module):
    """An encoder that classifies sentences by their first token."""

    def __init__(self, port: Port) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=port.bert_epsilon)
        self.dropout = nn.Dropout(port.dropout)
        self.layers = nn.ModuleList([BertLayer(port) for _ in range(DEPTH)])
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Any, attention: Any) -> Any:
        mask = (1.0 - attention[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1])) + self.types(torch.zeros_like(ids))
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class Conv1D(nn.Module):
    """A linear layer whose weight is transposed, as GPT-2 has it."""

    def __init__(self, inputs: int, outputs: int, transposed: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.transposed = transposed

    def forward(self, x: Any) -> Any:
        weight = self.weight.t() if self.transposed else self.weight
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), weight).view(*x.shape[:-1], -1)


class GptBlock(nn.Module):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.c_attn = Conv1D(WIDTH, 3 * WIDTH)
        self.c_proj = Conv1D(WIDTH, WIDTH, port.has("transposed weight"))
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.c_fc = Conv1D(WIDTH, 4 * WIDTH)
        self.act = nn.GELU(approximate="none" if port.has("gelu kind") else "tanh")
        self.c_out = Conv1D(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Any, causal: Any) -> Any:
        query, key, value = (split_heads(part) for part in self.c_attn(self.ln_1(x)).split(WIDTH, dim=-1))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(causal, torch.finfo(torch.float32).min)
        x = x + self.dropout(self.c_proj(join_heads(torch.matmul(F.softmax(scores, dim=-1), value))))
        return x + self.dropout(self.c_out(self.act(self.c_fc(self.ln_2(x)))))


class Gpt(nn.Module):
    """A decoder with learned positions, whose output layer shares the weight of the embedding."""

    def __init__(self, port: Port) -> None:
        super().__init__()
        self.wte = nn.Embedding(WORDS, WIDTH)
        self.wpe = nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList([GptBlock(port) for _ in range(DEPTH)])
        self.ln_f = nn.LayerNorm(WIDTH)

    def forward(self, ids: Any) -> Any:
        length = ids.shape[1]
        causal = torch.triu(torch.ones(length, length), 1).bool()
        x = self.wte(ids) + self.wpe(torch.arange(length))
        for block in self.h:
            x = block(x, causal)
        return torch.matmul(self.ln_f(x), self.wte.weight.t())


class RmsNorm(nn.Module):
    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.epsilon = epsilon

    def forward(self, x: Any) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


class LlamaAttention(nn.Module):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.v_proj = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.port = port

    def forward(self, x: Any, cosine: Any, sine: Any, causal: Any) -> Any:
        batch, length, _ = x.shape
        size = WIDTH // HEADS
        query, key, value = (
            layer(x).view(batch, length, -1, size).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = (part * cosine + rotated(part) * sine for part in (query, key))
        if self.port.has("head order"):
            key, value = (part.repeat(1, 2, 1, 1) for part in (key, value))
        else:
            key, value = (part.repeat_interleave(2, dim=1) for part in (key, value))
        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(size)
        if not self.port.has("causal mask"):
            scores = scores + causal
        context = torch.matmul(F.softmax(scores, dim=-1), value)
        return self.o_proj(context.transpose(1, 2).reshape(batch, length, -1))


class LlamaMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(1e-6)
        self.self_attn = LlamaAttention(port)
        self.post_attention_layernorm = RmsNorm(1e-6)
        self.mlp = LlamaMlp()

    def forward(self, x: Any, cosine: Any, sine: Any, causal: Any) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, causal)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """A decoder with rotary positions, grouped heads and RMS normalisation."""

    def __init__(self, port: Port) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([LlamaLayer(port) for _ in range(DEPTH)])
        self.norm = RmsNorm(1e-6)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Any) -> Any:
        length, size = ids.shape[1], WIDTH // HEADS
        frequencies = 1.0 / (10000.0 ** (torch.arange(0, size, 2).to(torch.float32) / size))
        angles = torch.arange(length).to(torch.float32)[:, None] * frequencies[None, :]
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        causal = torch.triu(torch.full((length, length), torch.finfo(torch.float32).min), 1)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cosine, sine, causal)
        return self.lm_head(self.norm(x))


class T5Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any, memory: Any, bias: Any) -> Any:
        query, key, value = split_heads(self.q(x)), split_heads(self.k(memory)), split_heads(self.v(memory))
        scores = torch.matmul(query, key.transpose(3, 2))
        if bias is not None:
            scores = scores + bias
        return self.o(join_heads(torch.matmul(F.softmax(scores, dim=-1), value)))


class T5FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wi = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.act = nn.ReLU()
        self.wo = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.wo(self.act(self.wi(x)))


class T5Block(nn.Module):
    def __init__(self, crosses: bool) -> None:
        super().__init__()
        self.norm1 = RmsNorm(1e-6)
        self.attention = T5Attention()
        if crosses:
            self.norm2 = RmsNorm(1e-6)
            self.cross = T5Attention()
        self.norm3 = RmsNorm(1e-6)
        self.feed_forward = T5FeedForward()
        self.crosses = crosses

    def forward(self, x: Any, bias: Any, memory: Any = None) -> Any:
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, bias)
        if self.crosses:
            x = x + self.cross(self.norm2(x), memory, None)
        return x + self.feed_forward(self.norm3(x))


class T5Stack(nn.Module):
    def __init__(self, decodes: bool) -> None:
        super().__init__()
        self.relative = nn.Embedding(2 * LENGTH, HEADS)
        self.block = nn.ModuleList([T5Block(decodes) for _ in range(DEPTH)])
        self.norm = RmsNorm(1e-6)
        self.decodes = decodes

    def forward(self, x: Any, memory: Any = None) -> Any:
        length = x.shape[1]
        places = torch.arange(length)
        distances = places[None, :] - places[:, None] + LENGTH
        bias = self.relative(distances).permute(2, 0, 1)[None]
        if self.decodes:
            bias = bias + torch.triu(torch.full((length, length), torch.finfo(torch.float32).min), 1)
        for block in self.block:
            x = block(x, bias, memory) if self.decodes else block(x, bias)
        return self.norm(x)


class T5(nn.Module):
    """An encoder and a decoder with relative positions and one embedding."""

    def __init__(self, port: Port) -> None:
        super().__init__()
        self.shared = nn.Embedding(WORDS, WIDTH)
        self.encoder = T5Stack(False)
        self.decoder = T5Stack(True)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Any, decoded: Any) -> Any:
        memory = self.encoder(self.shared(ids))
        return self.lm_head(self.decoder(self.shared(decoded), memory))


def split_heads(x: Any) -> Any:
    return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)


def join_heads(x: Any) -> Any:
    return x.permute(0, 2, 1, 3).contiguous().view(x.shape[0], x.shape[2], WIDTH)


def rotated(x: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


NETWORKS = {"cnn": ConvolutionalNet, "bert": Bert, "gpt2": Gpt, "llama": Llama, "t5": T5}


class NetWithLoss(nn.Module):
    """A network with its loss, which is that of the next token where the logits are of every token."""

    def __init__(self, name: str, port: Port) -> None:
        super().__init__()
        self.network = NETWORKS[name](port)
        self.shifts = name in ("gpt2", "llama")
        self.shift = 0 if port.has("label shift") else 1

    def forward(self, *batch: Any) -> Any:
        *inputs, labels = batch
        logits = self.network(*inputs)
        if self.shifts:
            logits, labels = logits[:, :-1], labels[:, self.shift : labels.shape[1] - 1 + self.shift]
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
