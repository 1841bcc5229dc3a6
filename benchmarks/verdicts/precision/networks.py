"""Networks with some layers of one kind, and the faults that are planted into them."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

WIDTH, WORDS = 64, 97


class Convolutions(nn.Module):
    """Blocks of convolutions with batch norm, each with a way around it."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(_Block() for _ in range(blocks))
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(images)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean((2, 3)))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.act = nn.SiLU()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.norm2(self.conv2(self.act(self.norm1(self.conv1(hidden)))))


class Attending(nn.Module):
    """Layers of attention that are written out, as in papers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class _Layer(nn.Module):
    axis = -1

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm1(hidden)
        query, key, value = (
            each(normed).unflatten(-1, (4, 16)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        scores = torch.softmax(query @ key.transpose(-1, -2) / 4.0, self.axis)
        hidden = hidden + self.out((scores @ value).transpose(1, 2).flatten(2))
        return hidden + self.down(torch.nn.functional.gelu(self.up(self.norm2(hidden))))


class Recurrent(nn.Module):
    """LSTMs one after the other."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words)
        for layer in self.layers:
            hidden = hidden + layer(hidden)[0]
        return self.head(hidden)


def _decoder(kind: str, layers: int) -> nn.Module:
    usual: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 96}
    usual.update(
        num_attention_heads=4, num_hidden_layers=layers, max_position_embeddings=64, use_cache=False, pad_token_id=0
    )
    if kind != "gpt_neox":
        usual.update(num_key_value_heads=2)
    classes = {
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "gpt_neox": (transformers.GPTNeoXConfig, transformers.GPTNeoXForCausalLM),
    }
    config, model = classes[kind]
    return model(config(**usual))


def _roberta(layers: int) -> nn.Module:
    config = transformers.RobertaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=96, num_attention_heads=4, num_hidden_layers=layers,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
    )  # fmt: skip
    return transformers.RobertaForMaskedLM(config)


def _t5_encoder(layers: int) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=WIDTH, d_kv=16, num_heads=4, d_ff=96, num_layers=layers, dropout_rate=0.0
    )
    return transformers.T5EncoderModel(config)


Fault = Callable[[Any], None]


class Network(NamedTuple):
    """A network, and its faults: what is done to it, and a pattern of what is to be named."""

    build: Callable[[], nn.Module]
    faults: dict[str, tuple[str, Fault]]
    dtype: str = "bfloat16"
    """The type of the target. The golden run has float32."""
    golden_dtype: str = "float32"
    tuned: bool = False
    """True if constants were chosen with a look at it."""


def transpose(path: str) -> Fault:
    return lambda model: _set(model, path, lambda weight: weight.t())


def roll(path: str, by: int = 1, axis: int = 1) -> Fault:
    return lambda model: _set(model, path, lambda weight: weight.roll(by, axis))


def _set(model: nn.Module, path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    weight = model.get_parameter(path)
    with torch.no_grad():
        weight.copy_(change(weight).clone())


def replace(path: str, by: nn.Module) -> Fault:
    parent, _, name = path.rpartition(".")
    return lambda model: setattr(model.get_submodule(parent), name, by)


def attribute(path: str, name: str, value: Any) -> Fault:
    return lambda model: setattr(model.get_submodule(path), name, value)


def without_bias(path: str) -> Fault:
    """A fault: the bias is not added, though the parameter is there."""

    def plant(model: Any) -> None:
        layer = model.get_submodule(path)
        layer.forward = lambda hidden: torch.nn.functional.linear(hidden, layer.weight)

    return plant


def without_way_around(path: str) -> Fault:
    """A fault: a block of convolutions is no residual one."""

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm2(self.conv2(self.act(self.norm1(self.conv1(hidden)))))

    def plant(model: Any) -> None:
        block = model.get_submodule(path)
        block.forward = types.MethodType(forward, block)

    return plant


def late_rotary(path: str) -> Fault:
    """A fault: one layer gets the positions of the next words."""

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        kwargs["position_embeddings"] = tuple(each.roll(1, 1) for each in kwargs["position_embeddings"])
        return args, kwargs

    def plant(model: Any) -> None:
        model.get_submodule(path).register_forward_pre_hook(hook, with_kwargs=True)

    return plant


_ROBERTA = "roberta.encoder.layer"

NETWORKS = {
    "qwen2": Network(lambda: _decoder("qwen2", 8), {
        "o_proj": (r"layers\.4\.self_attn", transpose("model.layers.4.self_attn.o_proj.weight")),
        "scale": (r"layers\.6\.self_attn", attribute("model.layers.6.self_attn", "scaling", 1.0)),
    }, tuned=True),
    "roberta": Network(lambda: _roberta(6), {
        "dense": (r"layer\.4\.output", roll(f"{_ROBERTA}.4.output.dense.weight")),
        "act": (r"layer\.3\.intermediate", replace(f"{_ROBERTA}.3.intermediate.intermediate_act_fn", nn.ReLU())),
    }, tuned=True),
    "convolutions": Network(lambda: Convolutions(8), {
        "channels": (r"blocks\.5\.conv1", roll("blocks.5.conv1.weight", 3)),
        "around": (r"blocks\.4", without_way_around("blocks.4")),
    }, dtype="float16", tuned=True),
    "mistral": Network(lambda: _decoder("mistral", 10), {
        "q_proj": (r"layers\.7\.self_attn", transpose("model.layers.7.self_attn.q_proj.weight")),
        "gate": (r"layers\.5\.mlp", roll("model.layers.5.mlp.gate_proj.weight", 7)),
        "rotary": (r"layers\.6\.self_attn|Tensor\.roll", late_rotary("model.layers.6.self_attn")),
    }),
    "gpt_neox": Network(lambda: _decoder("gpt_neox", 6), {
        "bias": (r"layers\.4\.mlp\.dense_h", without_bias("gpt_neox.layers.4.mlp.dense_h_to_4h")),
        "act": (r"layers\.3\.mlp", replace("gpt_neox.layers.3.mlp.act", nn.Tanh())),
    }, dtype="float16"),
    "t5_encoder": Network(lambda: _t5_encoder(8), {
        "value": (r"block\.5\.layer\.0", transpose("encoder.block.5.layer.0.SelfAttention.v.weight")),
        "wo": (r"block\.4\.layer\.1", roll("encoder.block.4.layer.1.DenseReluDense.wo.weight", 9)),
    }),
    "attending": Network(lambda: Attending(12), {
        "axis": (r"layers\.8\b", attribute("layers.8", "axis", -2)),
        "down": (r"layers\.9\b", roll("layers.9.down.weight", 5)),
        "norm": (r"layers\.6\.norm2", attribute("layers.6.norm2", "eps", 0.3)),
    }),
    "attending_both": Network(lambda: Attending(12), {
        "key": (r"layers\.8\.key", transpose("layers.8.key.weight")),
    }, golden_dtype="bfloat16"),
    "recurrent": Network(lambda: Recurrent(6), {
        "hidden": (r"layers\.4\b", lambda model: _set(
            model, "layers.4.weight_hh_l0", lambda weight: weight.roll(5, 1))),
    }),
}  # fmt: skip


def build(name: str) -> nn.Module:
    """The network with the scales of a trained one."""
    torch.manual_seed(3)
    model = NETWORKS[name].build()
    with torch.no_grad():
        for path, each in model.named_parameters():
            noise = torch.randn(each.shape)
            if each.dim() < 2:
                each.copy_(1.0 + 0.2 * noise if path.endswith("weight") else 0.1 * noise)
            elif "embed" in path or "shared" in path:
                each.copy_(0.5 * noise)
            else:
                each.copy_(1.2 * each[0].numel() ** -0.5 * noise)
    return model.train()


def loss(name: str, model: nn.Module, seed: int = 0) -> torch.Tensor:
    """The loss of one batch."""
    generator = torch.Generator().manual_seed(seed)
    if name == "convolutions":
        dtype = next(model.parameters()).dtype
        found = model(torch.randn(4, 3, 16, 16, generator=generator).to(dtype))
        return torch.nn.functional.cross_entropy(found, torch.randint(10, (4,), generator=generator))
    words = torch.randint(5, WORDS, (4, 16), generator=generator)
    found = model(words)
    values = found if isinstance(found, torch.Tensor) else found[0]
    if values.shape[-1] != WORDS:
        return values.float().square().mean()
    return torch.nn.functional.cross_entropy(values.flatten(0, 1), words.flatten())
