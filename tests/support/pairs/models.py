"""Small models of Transformers, made from a configuration; their weights are drawn once and loaded by every run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

VOCABULARY = 97
WIDTH = 64
_INNER = 96

_DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": _INNER, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 64, "use_cache": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_SIZES: dict[str, dict[str, Any]] = {
    "llama": _DECODER,
    "qwen2": _DECODER,
    "mixtral": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {
        "n_embd": WIDTH, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY, "use_cache": False,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "bert": {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": _INNER, "max_position_embeddings": 64,
    },
    "t5": {
        "vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 16, "num_heads": 4, "d_ff": _INNER, "num_layers": 2,
        "num_decoder_layers": 2, "use_cache": False, "decoder_start_token_id": 0,
    },
    "whisper": {
        "vocab_size": VOCABULARY, "num_mel_bins": 16, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": _INNER,
        "decoder_ffn_dim": _INNER, "max_source_positions": 20, "max_target_positions": 32, "use_cache": False,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
    },
    "vit": {
        "image_size": 32, "patch_size": 8, "num_channels": 3, "hidden_size": WIDTH, "num_hidden_layers": 3,
        "num_attention_heads": 4, "intermediate_size": _INNER, "num_labels": 10,
    },
}  # fmt: skip
# The same with more layers, each of which has many like it.
_SIZES.update({f"{name}8": {**_SIZES[name], "num_hidden_layers": 8} for name in ("llama", "bert", "vit")})
_DROPOUTS = {
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "t5": ("dropout_rate",),
    "whisper": ("dropout",),
    "vit": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
}
_CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "bert": ("BertConfig", "BertForMaskedLM"),
    "t5": ("T5Config", "T5ForConditionalGeneration"),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration"),
    "vit": ("ViTConfig", "ViTForImageClassification"),
}


def _class(model: str) -> Any:
    import transformers

    return getattr(transformers, _CLASSES[model.rstrip("8")][1])


def import_classes(models: Iterable[str]) -> None:
    """Import what is looked up late of these models, so that processes forked from this one need not."""
    for model in models:
        _class(model)


def _configuration(model: str, changes: Mapping[str, Any], dropout: float, attention: str) -> Any:
    import transformers

    chosen = {**_SIZES[model], **dict.fromkeys(_DROPOUTS.get(model.rstrip("8"), ()), dropout), **changes}
    theta = chosen.pop("rope_theta", None)
    if theta is not None and int(transformers.__version__.partition(".")[0]) >= 5:
        chosen["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    elif theta is not None:
        chosen["rope_theta"] = theta
    if attention:
        chosen["attn_implementation"] = attention
    return getattr(transformers, _CLASSES[model.rstrip("8")][0])(**chosen)


def save_weights(model: str, folder: Path) -> None:
    """Draw weights with the scales of a trained network and save them, by the older release where there is one."""
    import torch

    torch.manual_seed(0)
    network = _class(model)(_configuration(model, {}, 0.0, ""))
    embeddings = {id(each.weight) for each in network.modules() if isinstance(each, torch.nn.Embedding)}
    transposed = {id(each.weight) for each in network.modules() if type(each).__name__ == "Conv1D"}
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape)
            if parameter.dim() < 2:
                parameter.copy_(1 + 0.2 * noise if name.endswith("weight") else 0.1 * noise)
            elif id(parameter) in embeddings:
                parameter.copy_(0.5 * noise)
            else:
                inner = parameter.shape[0] if id(parameter) in transposed else parameter[0].numel()
                parameter.copy_(1.2 * inner**-0.5 * noise)
    network.save_pretrained(folder / "making", safe_serialization=True)
    # A folder of that name is whole.
    os.rename(folder / "making", folder / model)


def load(model: str, folder: Path, changes: Mapping[str, Any], dropout: float, attention: str) -> Any:
    """The network with the saved weights, in float32."""
    import torch

    configuration = _configuration(model, changes, dropout, attention)
    network, said = _class(model).from_pretrained(folder / model, config=configuration, output_loading_info=True)
    if said.get("missing_keys"):
        # They would be drawn at random, and differ.
        print("missing:", said["missing_keys"], file=sys.stderr)
    return network.to(torch.float32)
