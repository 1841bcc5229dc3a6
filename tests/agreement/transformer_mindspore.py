"""The transformer of transformer_torch.py as one writes it in MindSpore: other names, one level more, the same numbers.

    python transformer_mindspore.py FOLDER LEVEL ...

The dumps go to FOLDER/mindspore/LEVEL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from msprobe.mindspore import PrecisionDebugger

HEADS = 2
# What a layer is called there and here.
NAMES = {
    "embed_tokens.weight": "embedding.embedding_table",
    "self_attn.q_proj": "attention.dense1",
    "self_attn.k_proj": "attention.dense2",
    "self_attn.v_proj": "attention.dense3",
    "self_attn.o_proj": "attention.projection",
    "mlp.fc1": "ffn.mapping",
    "mlp.fc2": "ffn.projection",
    "norm1.weight": "layernorm1.gamma",
    "norm1.bias": "layernorm1.beta",
    "norm2.weight": "layernorm2.gamma",
    "norm2.bias": "layernorm2.beta",
    "norm.weight": "final_layernorm.gamma",
    "norm.bias": "final_layernorm.beta",
    "classifier": "head",
    "layers": "encoder.blocks",
}


class SelfAttention(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense1 = nn.Dense(width, width)
        self.dense2 = nn.Dense(width, width)
        self.dense3 = nn.Dense(width, width)
        self.projection = nn.Dense(width, width)

    def construct(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, HEADS, width // HEADS)
        query = ops.transpose(ops.reshape(self.dense1(x), shape), (0, 2, 1, 3))
        key = ops.transpose(ops.reshape(self.dense2(x), shape), (0, 2, 1, 3))
        value = ops.transpose(ops.reshape(self.dense3(x), shape), (0, 2, 1, 3))
        scores = ops.matmul(query, ops.swapaxes(key, -2, -1)) * (width // HEADS) ** -0.5
        context = ops.matmul(ops.softmax(scores, axis=-1), value)
        return self.projection(ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (batch, length, width)))


class FeedForward(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mapping = nn.Dense(width, 4 * width)
        self.projection = nn.Dense(4 * width, width)
        self.activation = nn.GELU(approximate=False)

    def construct(self, x: Tensor) -> Tensor:
        return self.projection(self.activation(self.mapping(x)))


class TransformerBlock(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width)
        self.ffn = FeedForward(width)
        self.layernorm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.layernorm2 = nn.LayerNorm((width,), epsilon=1e-5)

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.layernorm1(x))
        return x + self.ffn(self.layernorm2(x))


class Encoder(nn.Cell):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.CellList([TransformerBlock(width) for _ in range(depth)])

    def construct(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Classifier(nn.Cell):
    def __init__(self, words: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.encoder = Encoder(width, depth)
        self.final_layernorm = nn.LayerNorm((width,), epsilon=1e-5)
        self.head = nn.Dense(width, classes)

    def construct(self, ids: Tensor) -> Tensor:
        x = self.final_layernorm(self.encoder(self.embedding(ids)))
        return self.head(ops.mean(x, 1))


class NetWithLoss(nn.Cell):
    def __init__(self, network: nn.Cell) -> None:
        super().__init__()
        self.network = network

    def construct(self, ids: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(self.network(ids), labels)


def main(level: str, folder: Path) -> None:
    arrays = dict(np.load(folder / "weights.npz", allow_pickle=False))
    ids, labels = (Tensor(arrays.pop(name).astype(np.int32)) for name in ("ids", "labels"))
    depth = len({name.split(".")[1] for name in arrays if name.startswith("layers.")})
    model = NetWithLoss(Classifier(*arrays["embed_tokens.weight"].shape, depth, len(arrays["classifier.bias"])))
    parameters = dict(model.parameters_and_names())
    for name, array in arrays.items():
        for theirs, mine in NAMES.items():
            name = name.replace(theirs, mine)
        parameters.pop(f"network.{name}").set_data(Tensor(array))
    assert not parameters, sorted(parameters)
    config = folder / f"mindspore {level}.json"
    content = {"task": "statistics", "level": level, "risk_level": "ALL", "statistics": {}}
    content["dump_path"] = str(folder / "mindspore" / level)
    config.write_text(json.dumps(content), encoding="utf-8")
    debugger = PrecisionDebugger(str(config))
    debugger.start(model)
    ms.value_and_grad(model, None, model.trainable_params())(ids, labels)
    debugger.stop()
    debugger.step()
    debugger.reset()


if __name__ == "__main__":
    for each in sys.argv[2:]:
        main(each, Path(sys.argv[1]))
