"""The networks of networks_torch.py as one writes them in MindSpore, with names of their own."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from port_settings import CLASSES, DEPTH, HEADS, LENGTH, WIDTH, WORDS, Port

LOWEST = float(np.finfo(np.float32).min)

# What a part of a name is called in torch, and here.
NAMES = {
    "cnn": {"bn1.weight": "bn1.gamma", "bn1.bias": "bn1.beta", "bn2.weight": "bn2.gamma", "bn2.bias": "bn2.beta"},
    "bert": {
        "words.weight": "word_embedding.embedding_table",
        "positions.weight": "position_embedding.embedding_table",
        "types.weight": "token_type_embedding.embedding_table",
        "norm1.weight": "layernorm1.gamma",
        "norm1.bias": "layernorm1.beta",
        "norm2.weight": "layernorm2.gamma",
        "norm2.bias": "layernorm2.beta",
        "norm.weight": "layernorm.gamma",
        "norm.bias": "layernorm.beta",
        "attention.query": "attention.dense1",
        "attention.key": "attention.dense2",
        "attention.value": "attention.dense3",
        ".output.": ".attention_output.",
        ".layers.": ".encoder.",
    },
    "gpt2": {
        "wte.weight": "embedding.embedding_table",
        "wpe.weight": "position_embedding.embedding_table",
        "ln_1.weight": "layernorm1.gamma",
        "ln_1.bias": "layernorm1.beta",
        "ln_2.weight": "layernorm2.gamma",
        "ln_2.bias": "layernorm2.beta",
        "ln_f.weight": "layernorm.gamma",
        "ln_f.bias": "layernorm.beta",
        "c_attn": "attention_qkv",
        "c_proj": "projection",
        "c_fc": "mapping",
        "c_out": "output",
        ".h.": ".blocks.",
    },
    "llama": {
        "embed_tokens.weight": "tok_embeddings.embedding_table",
        "self_attn.q_proj": "attention.wq",
        "self_attn.k_proj": "attention.wk",
        "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "network.norm": "network.norm_out",
    },
    "t5": {"shared.weight": "shared.embedding_table", "relative.weight": "relative.embedding_table"},
}


class ConvolutionalNet(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        momentum = 0.1 if port.has("momentum convention") else 0.9
        self.conv1 = nn.Conv2d(3, 8, 3, pad_mode="pad", padding=1)
        self.bn1 = nn.BatchNorm2d(8, momentum=momentum)
        self.relu = nn.ReLU()
        pad = {"pad_mode": "same"} if port.has("conv padding") else {"pad_mode": "pad", "padding": 1}
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, has_bias=True, **pad)
        self.bn2 = nn.BatchNorm2d(16, momentum=momentum)
        self.fc = nn.Dense(16, CLASSES)

    def construct(self, images: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.fc(ops.mean(x, (2, 3)))


class BertSelfAttention(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.dense1 = nn.Dense(WIDTH, WIDTH)
        self.dense2 = nn.Dense(WIDTH, WIDTH)
        self.dense3 = nn.Dense(WIDTH, WIDTH)
        self.softmax = nn.Softmax(axis=-1)
        size = WIDTH // HEADS
        self.scores_mul = 1.0 / size if port.has("attention scale") else 1.0 / math.sqrt(size)

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (split_heads(layer(x)) for layer in (self.dense1, self.dense2, self.dense3))
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2)) * self.scores_mul + mask
        return join_heads(ops.matmul(self.softmax(scores), value))


class BertLayer(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.attention = BertSelfAttention(port)
        self.attention_output = nn.Dense(WIDTH, WIDTH, has_bias=not port.has("missing bias"))
        self.layernorm1 = nn.LayerNorm((WIDTH,), epsilon=port.bert_epsilon)
        self.intermediate = nn.Dense(WIDTH, 4 * WIDTH)
        self.activation = nn.GELU(approximate=False)
        self.dense = nn.Dense(4 * WIDTH, WIDTH)
        self.layernorm2 = nn.LayerNorm((WIDTH,), epsilon=port.bert_epsilon)
        self.dropout = nn.Dropout(keep_prob=1.0 - port.dropout)

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.layernorm1(x + self.dropout(self.attention_output(self.attention(x, mask))))
        return self.layernorm2(x + self.dropout(self.dense(self.activation(self.intermediate(x)))))


class Bert(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.word_embedding = nn.Embedding(WORDS, WIDTH)
        self.position_embedding = nn.Embedding(LENGTH, WIDTH)
        self.token_type_embedding = nn.Embedding(2, WIDTH)
        self.layernorm = nn.LayerNorm((WIDTH,), epsilon=port.bert_epsilon)
        self.dropout = nn.Dropout(keep_prob=1.0 - port.dropout)
        self.encoder = nn.CellList([BertLayer(port) for _ in range(DEPTH)])
        self.pooler = nn.Dense(WIDTH, WIDTH, activation="tanh")
        self.classifier = nn.Dense(WIDTH, CLASSES)

    def construct(self, ids: Tensor, attention: Tensor) -> Tensor:
        mask = (1.0 - ops.cast(ops.expand_dims(ops.expand_dims(attention, 1), 1), ms.float32)) * -10000.0
        x = self.word_embedding(ids) + self.position_embedding(ops.arange(ids.shape[1]))
        x = self.dropout(self.layernorm(x + self.token_type_embedding(ops.zeros_like(ids))))
        for layer in self.encoder:
            x = layer(x, mask)
        return self.classifier(self.pooler(x[:, 0]))


class Conv1D(nn.Cell):
    def __init__(self, inputs: int, outputs: int, transposed: bool = False) -> None:
        super().__init__()
        self.weight = Parameter(ops.zeros((inputs, outputs), ms.float32))
        self.bias = Parameter(ops.zeros((outputs,), ms.float32))
        self.transposed = transposed

    def construct(self, x: Tensor) -> Tensor:
        weight = ops.swapaxes(self.weight, 0, 1) if self.transposed else self.weight
        return ops.matmul(x, weight) + self.bias


class GptBlock(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.layernorm1 = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.attention_qkv = Conv1D(WIDTH, 3 * WIDTH)
        self.projection = Conv1D(WIDTH, WIDTH, port.has("transposed weight"))
        self.layernorm2 = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.mapping = Conv1D(WIDTH, 4 * WIDTH)
        self.activation = nn.GELU(approximate=not port.has("gelu kind"))
        self.output = Conv1D(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(p=0.0)

    def construct(self, x: Tensor, causal: Tensor) -> Tensor:
        query, key, value = ops.split(self.attention_qkv(self.layernorm1(x)), WIDTH, axis=-1)
        query, key, value = split_heads(query), split_heads(key), split_heads(value)
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2)) / math.sqrt(WIDTH // HEADS)
        scores = ops.masked_fill(scores, causal, Tensor(-1e9, ms.float32))
        x = x + self.dropout(self.projection(join_heads(ops.matmul(ops.softmax(scores, axis=-1), value))))
        return x + self.dropout(self.output(self.activation(self.mapping(self.layernorm2(x)))))


class Gpt(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.position_embedding = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.CellList([GptBlock(port) for _ in range(DEPTH)])
        self.layernorm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.causal = Tensor(np.triu(np.ones((LENGTH, LENGTH)), 1).astype(bool))

    def construct(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position_embedding(ops.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, self.causal)
        return ops.matmul(self.layernorm(x), ops.swapaxes(self.embedding.embedding_table, 0, 1))


class RMSNorm(nn.Cell):
    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((WIDTH,), ms.float32))
        self.epsilon = epsilon

    def construct(self, x: Tensor) -> Tensor:
        return x * ops.rsqrt(ops.mean(ops.square(x), -1, True) + self.epsilon) * self.weight


class LlamaAttention(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.wq = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.wk = nn.Dense(WIDTH, WIDTH // 2, has_bias=False)
        self.wv = nn.Dense(WIDTH, WIDTH // 2, has_bias=False)
        self.wo = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.port = port

    def construct(self, x: Tensor, cosine: Tensor, sine: Tensor, causal: Tensor) -> Tensor:
        batch, length, _ = x.shape
        size = WIDTH // HEADS
        query, key, value = (
            ops.transpose(ops.reshape(layer(x), (batch, length, -1, size)), (0, 2, 1, 3))
            for layer in (self.wq, self.wk, self.wv)
        )
        query, key = (part * cosine + rotated(part) * sine for part in (query, key))
        if self.port.has("head order"):
            key, value = (ops.tile(part, (1, 2, 1, 1)) for part in (key, value))
        else:
            key, value = (ops.repeat_interleave(part, 2, 1) for part in (key, value))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) * (1.0 / math.sqrt(size))
        if not self.port.has("causal mask"):
            scores = scores + causal
        context = ops.transpose(ops.matmul(ops.softmax(scores, axis=-1), value), (0, 2, 1, 3))
        return self.wo(ops.reshape(context, (batch, length, -1)))


class LlamaFeedForward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Dense(WIDTH, 2 * WIDTH, has_bias=False)
        self.w3 = nn.Dense(WIDTH, 2 * WIDTH, has_bias=False)
        self.w2 = nn.Dense(2 * WIDTH, WIDTH, has_bias=False)

    def construct(self, x: Tensor) -> Tensor:
        return self.w2(ops.silu(self.w1(x)) * self.w3(x))


class LlamaLayer(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(1e-6)
        self.attention = LlamaAttention(port)
        self.ffn_norm = RMSNorm(1e-6)
        self.feed_forward = LlamaFeedForward()

    def construct(self, x: Tensor, cosine: Tensor, sine: Tensor, causal: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine, causal)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.CellList([LlamaLayer(port) for _ in range(DEPTH)])
        self.norm_out = RMSNorm(1e-6)
        self.lm_head = nn.Dense(WIDTH, WORDS, has_bias=False)
        size = WIDTH // HEADS
        frequencies = 1.0 / (10000.0 ** (np.arange(0, size, 2).astype(np.float32) / size))
        angles = np.arange(LENGTH).astype(np.float32)[:, None] * frequencies[None, :]
        angles = np.concatenate((angles, angles), axis=-1)
        self.cosine = Tensor(np.cos(angles).astype(np.float32))
        self.sine = Tensor(np.sin(angles).astype(np.float32))
        self.causal = Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9), 1).astype(np.float32))

    def construct(self, ids: Tensor) -> Tensor:
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine, self.causal)
        return self.lm_head(self.norm_out(x))


class T5Attention(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.k = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.v = nn.Dense(WIDTH, WIDTH, has_bias=False)
        self.o = nn.Dense(WIDTH, WIDTH, has_bias=False)

    def construct(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        query, key, value = split_heads(self.q(x)), split_heads(self.k(memory)), split_heads(self.v(memory))
        scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
        if bias is not None:
            scores = scores + bias
        return self.o(join_heads(ops.matmul(ops.softmax(scores, axis=-1), value)))


class T5FeedForward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.wi = nn.Dense(WIDTH, 2 * WIDTH, has_bias=False)
        self.act = nn.ReLU()
        self.wo = nn.Dense(2 * WIDTH, WIDTH, has_bias=False)

    def construct(self, x: Tensor) -> Tensor:
        return self.wo(self.act(self.wi(x)))


class T5Block(nn.Cell):
    def __init__(self, crosses: bool) -> None:
        super().__init__()
        self.norm1 = RMSNorm(1e-6)
        self.attention = T5Attention()
        if crosses:
            self.norm2 = RMSNorm(1e-6)
            self.cross = T5Attention()
        self.norm3 = RMSNorm(1e-6)
        self.feed_forward = T5FeedForward()
        self.crosses = crosses

    def construct(self, x: Tensor, bias: Tensor, memory: Tensor = None) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, bias)
        if self.crosses:
            x = x + self.cross(self.norm2(x), memory, None)
        return x + self.feed_forward(self.norm3(x))


class T5Stack(nn.Cell):
    def __init__(self, decodes: bool) -> None:
        super().__init__()
        self.relative = nn.Embedding(2 * LENGTH, HEADS)
        self.block = nn.CellList([T5Block(decodes) for _ in range(DEPTH)])
        self.norm = RMSNorm(1e-6)
        self.decodes = decodes
        places = np.arange(LENGTH)
        self.distances = Tensor((places[None, :] - places[:, None] + LENGTH).astype(np.int32))
        self.causal = Tensor(np.triu(np.full((LENGTH, LENGTH), -1e9), 1).astype(np.float32))

    def construct(self, x: Tensor, memory: Tensor = None) -> Tensor:
        bias = ops.expand_dims(ops.transpose(self.relative(self.distances), (2, 0, 1)), 0)
        if self.decodes:
            bias = bias + self.causal
        for block in self.block:
            x = block(x, bias, memory) if self.decodes else block(x, bias)
        return self.norm(x)


class T5(nn.Cell):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.shared = nn.Embedding(WORDS, WIDTH)
        self.encoder = T5Stack(False)
        self.decoder = T5Stack(True)
        self.lm_head = nn.Dense(WIDTH, WORDS, has_bias=False)

    def construct(self, ids: Tensor, decoded: Tensor) -> Tensor:
        memory = self.encoder(self.shared(ids))
        return self.lm_head(self.decoder(self.shared(decoded), memory))


def split_heads(x: Tensor) -> Tensor:
    return ops.transpose(ops.reshape(x, (x.shape[0], x.shape[1], HEADS, WIDTH // HEADS)), (0, 2, 1, 3))


def join_heads(x: Tensor) -> Tensor:
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (x.shape[0], x.shape[2], WIDTH))


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return ops.concat((-x[..., half:], x[..., :half]), axis=-1)


NETWORKS = {"cnn": ConvolutionalNet, "bert": Bert, "gpt2": Gpt, "llama": Llama, "t5": T5}


class NetWithLoss(nn.Cell):
    """A network with its loss."""

    def __init__(self, name: str, port: Port) -> None:
        super().__init__()
        self.network = NETWORKS[name](port)
        self.loss = nn.CrossEntropyLoss()
        self.shifts = name in ("gpt2", "llama")
        self.shift = 0 if port.has("label shift") else 1

    def construct(self, *batch: Any) -> Tensor:
        *inputs, labels = batch
        logits = self.network(*inputs)
        if self.shifts:
            logits, labels = logits[:, :-1], labels[:, self.shift : labels.shape[1] - 1 + self.shift]
        return self.loss(ops.reshape(logits, (-1, logits.shape[-1])), ops.reshape(labels, (-1,)))


def renamed(network: str, name: str) -> str:
    """What a parameter is called here, given what it is called in torch."""
    for theirs, mine in sorted(NAMES[network].items(), key=lambda pair: -len(pair[0])):
        if theirs in name:
            name = name.replace(theirs, mine)
    return name
