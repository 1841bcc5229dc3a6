"""What is done to a network before it trains: single faults, by name. The names of modules are those of 5.23."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Fault = Callable[[Any], None]


def _scale(path: str, factor: float) -> Fault:
    return lambda network: network.get_submodule(path).weight.mul_(factor)


def _roll(path: str, axis: int = 0, by: int = 1) -> Fault:
    def fault(network: Any) -> None:
        weight = network.get_submodule(path).weight
        weight.copy_(weight.roll(by, axis))

    return fault


def _shift_bias(path: str) -> Fault:
    return lambda network: network.get_submodule(path).bias.add_(0.05)


def _epsilon(path: str, value: float) -> Fault:
    def fault(network: Any) -> None:
        module = network.get_submodule(path)
        setattr(module, "eps" if hasattr(module, "eps") else "variance_epsilon", value)

    return fault


def _transpose(path: str) -> Fault:
    def fault(network: Any) -> None:
        weight = network.get_submodule(path).weight
        weight.copy_(weight.t().clone())

    return fault


def _draw_again(path: str) -> Fault:
    def fault(network: Any) -> None:
        import torch

        torch.manual_seed(99)
        network.get_submodule(path).weight.normal_(0, 0.02)

    return fault


def _freeze(path: str) -> Fault:
    return lambda network: network.get_submodule(path).requires_grad_(False)


def _nan(path: str) -> Fault:
    def fault(network: Any) -> None:
        network.get_submodule(path).weight[3, 5] = float("nan")

    return fault


def _untie(network: Any) -> None:
    from torch import nn

    head = nn.Linear(64, 97, bias=False)
    head.weight.copy_(network.transformer.wte.weight)
    network.lm_head = head


def _swap_experts(network: Any) -> None:
    weight = network.model.layers[1].mlp.experts.down_proj
    weight.copy_(weight.flip(0))


def _skip(path: str) -> Fault:
    """A layer that returns what it takes."""

    def fault(network: Any) -> None:
        network.get_submodule(path).forward = lambda hidden, *_, **__: hidden

    return fault


def _unscaled(path: str) -> Fault:
    return lambda network: setattr(network.get_submodule(path), "scaling", 1.0)


def _relu(path: str) -> Fault:
    def fault(network: Any) -> None:
        from torch import nn

        network.get_submodule(path).act_fn = nn.ReLU()

    return fault


FAULTS: dict[str, Fault] = {
    # Of the listed pairs.
    "epsilon-gpt2": _epsilon("transformer.h.1.ln_2", 1e-2),
    "untied-gpt2": _untie,
    "transposed-q-llama": _transpose("model.layers.1.self_attn.q_proj"),
    "drawn-again-bert": _draw_again("bert.encoder.layer.1.intermediate.dense"),
    "frozen-bert": _freeze("bert.embeddings"),
    "nan-llama": _nan("model.layers.1.mlp.up_proj"),
    "scaled-down-llama": _scale("model.layers.1.mlp.down_proj", 1.2),
    "scaled-slightly-llama": _scale("model.layers.1.mlp.up_proj", 1 + 1e-4),
    "swapped-layers-llama": lambda network: network.model.layers[1].load_state_dict(
        network.model.layers[2].state_dict()
    ),
    # Of two precisions: the statistics of parameters stay as they are, but those of functions that are replaced.
    "skipped-llama8": _skip("model.layers.5"),
    "unscaled-llama8": _unscaled("model.layers.4.self_attn"),
    "relu-llama8": _relu("model.layers.6.mlp"),
    "transposed-o-llama8": _transpose("model.layers.5.self_attn.o_proj"),
    "rolled-up-llama8": _roll("model.layers.3.mlp.up_proj"),
    "rolled-q-bert8": _roll("bert.encoder.layer.4.attention.self.query", by=16),
    "rolled-dense-bert8": _roll("bert.encoder.layer.3.output.dense"),
    "rolled-fc-vit8": _roll("vit.layers.5.mlp.fc2"),
    "skipped-vit8": _skip("vit.layers.4"),
    # Of two releases in short types.
    "epsilon-llama": _epsilon("model.layers.1.post_attention_layernorm", 1e-2),
    "scaled-fc-gpt2": _scale("transformer.h.1.mlp.c_fc", 1.2),
    "bias-gpt2": _shift_bias("transformer.h.2.attn.c_attn"),
    "bias-bert": _shift_bias("bert.encoder.layer.1.output.dense"),
    "epsilon-bert": _epsilon("bert.encoder.layer.2.attention.output.LayerNorm", 3e-2),
    # Of the held-out pairs.
    "scaled-up-qwen2": _scale("model.layers.1.mlp.up_proj", 1.1),
    "rolled-q-qwen2": _roll("model.layers.1.self_attn.q_proj"),
    "bias-qwen2": _shift_bias("model.layers.2.self_attn.k_proj"),
    "epsilon-qwen2": _epsilon("model.layers.1.post_attention_layernorm", 1e-2),
    "frozen-qwen2": _freeze("model.layers.0"),
    "rolled-q-mixtral": _roll("model.layers.1.self_attn.q_proj"),
    "router-mixtral": _scale("model.layers.1.mlp.gate", 0.8),
    "swapped-experts-mixtral": _swap_experts,
    "epsilon-mixtral": _epsilon("model.layers.2.input_layernorm", 1e-2),
    "rolled-q-t5": _roll("encoder.block.1.layer.0.SelfAttention.q"),
    "scaled-wo-t5": _scale("decoder.block.1.layer.2.DenseReluDense.wo", 1.2),
    "epsilon-t5": _epsilon("encoder.block.1.layer.1.layer_norm", 1e-2),
    "conv-whisper": _roll("model.encoder.conv2", 2),
    "bias-whisper": _shift_bias("model.decoder.layers.1.fc1"),
    "rolled-q-whisper": _roll("model.decoder.layers.1.encoder_attn.q_proj"),
    "epsilon-whisper": _epsilon("model.encoder.layers.1.final_layer_norm", 1e-2),
    "rolled-q-vit": _roll("vit.layers.1.attention.q_proj"),
    "bias-vit": _shift_bias("vit.layers.1.mlp.fc1"),
    "epsilon-vit": _epsilon("vit.layers.1.layernorm_after", 1e-2),
    "conv-vit": _roll("vit.embeddings.patch_embeddings.projection", 3),
    "scaled-vit": _scale("vit.layers.2.mlp.fc2", 1.1),
}
