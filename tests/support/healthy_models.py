"""Healthy models of Transformers with random weights, which hold infinities and are no findings: what runs each.

    healthy_models.py DUMPS NAME...

Every model is small, made from a configuration, and runs forward and backward (or a generation) at the level and in the
type that stand beside it. Nothing comes from the network.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_VOCABULARY = 64
_DECODER = {
    "vocab_size": _VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_ENCODER = {
    "vocab_size": _VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Healthy:
    """One model and how it is run."""

    model: str
    """The name of the classes in Transformers, before ``Config``."""
    head: str
    sizes: dict[str, Any]
    inputs: Callable[[], dict[str, Any]]
    dtype: str = "float32"
    level: str = "mix"
    attention: str = "eager"
    generates: dict[str, Any] | None = None


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, _VOCABULARY, shape or (2, 10))


def _language() -> dict[str, Any]:
    tokens = _tokens()
    return {"input_ids": tokens, "labels": tokens}


def _padded(is_left: bool) -> Callable[[], dict[str, Any]]:
    def inputs() -> dict[str, Any]:
        tokens = _tokens(3, 10)
        mask = torch.ones_like(tokens)
        for sample, missing in enumerate((0, 3, 6)):
            mask[sample, : missing if is_left else 0] = 0
            mask[sample, 10 if is_left else 10 - missing :] = 0
        tokens = tokens.masked_fill(mask == 0, 0)
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}

    return inputs


def _prompt() -> dict[str, Any]:
    given = _padded(True)()
    del given["labels"]
    return given


def _sequences() -> dict[str, Any]:
    return {**_padded(False)(), "labels": _tokens(3, 6)}


def _pictures() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.randint(4, (2,))}


def _pictures_with_text() -> dict[str, Any]:
    given = _padded(False)()
    return {
        "input_ids": given["input_ids"], "attention_mask": given["attention_mask"],
        "pixel_values": torch.randn(3, 3, 16, 16), "return_loss": True,
    }  # fmt: skip


def _speech() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 40), "labels": _tokens(2, 6)}


def _waves() -> dict[str, Any]:
    return {"input_values": torch.randn(2, 800), "labels": torch.randint(3, 20, (2, 3))}


_WHISPER = {
    "vocab_size": _VOCABULARY, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_source_positions": 20, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3,
}  # fmt: skip
_T5 = {
    "vocab_size": _VOCABULARY, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 48, "num_layers": 2,
    "num_decoder_layers": 2, "decoder_start_token_id": 0,
}  # fmt: skip
_VISION = {"image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_EXPERTS = {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
_SAMPLED = {"max_new_tokens": 4, "do_sample": True, "top_k": 5, "top_p": 0.9}
_BEAMS = {"max_new_tokens": 4, "num_beams": 3, "do_sample": False, "no_repeat_ngram_size": 2}

MODELS: dict[str, Healthy] = {
    "llama": Healthy("Llama", "ForCausalLM", _DECODER, _language),
    "llama_left_padding": Healthy("Llama", "ForCausalLM", _DECODER, _padded(True), level="L1"),
    "llama_bfloat16": Healthy("Llama", "ForCausalLM", _DECODER, _padded(False), dtype="bfloat16"),
    "llama_float16": Healthy("Llama", "ForCausalLM", _DECODER, _padded(True), dtype="float16"),
    "llama_fused_left_padding": Healthy("Llama", "ForCausalLM", _DECODER, _padded(True), attention="sdpa"),
    "llama_sampling": Healthy("Llama", "ForCausalLM", _DECODER, _prompt, generates=_SAMPLED),
    "llama_beams": Healthy("Llama", "ForCausalLM", _DECODER, _prompt, generates=_BEAMS, level="L1"),
    "mistral_window": Healthy("Mistral", "ForCausalLM", {**_DECODER, "sliding_window": 4}, _padded(True)),
    "gemma2": Healthy(
        "Gemma2", "ForCausalLM", {**_DECODER, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}, _language
    ),
    "mixtral": Healthy("Mixtral", "ForCausalLM", _EXPERTS, _language),
    "qwen2_experts": Healthy(
        "Qwen2Moe", "ForCausalLM",
        {
            **_DECODER, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        _padded(False), level="L1",
    ),
    "deepseek_v3": Healthy(
        "DeepseekV3", "ForCausalLM",
        {
            **_DECODER, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4,
            "topk_group": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
        },
        _language,
    ),
    "gpt2": Healthy(
        "GPT2", "LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": _VOCABULARY}, _padded(True),
    ),
    "bloom": Healthy(
        "Bloom", "ForCausalLM", {"vocab_size": _VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}, _padded(True)
    ),
    "opt": Healthy(
        "OPT", "ForCausalLM",
        {**_DECODER, "ffn_dim": 48, "word_embed_proj_dim": 32}, _padded(True), dtype="float16",
    ),
    "bert": Healthy("Bert", "ForMaskedLM", _ENCODER, _padded(False)),
    "roberta": Healthy("Roberta", "ForMaskedLM", {**_ENCODER, "pad_token_id": 1}, _language, level="L1"),
    "electra": Healthy("Electra", "ForMaskedLM", {**_ENCODER, "embedding_size": 32}, _padded(False), dtype="bfloat16"),
    "t5": Healthy("T5", "ForConditionalGeneration", _T5, _sequences),
    "t5_generation": Healthy("T5", "ForConditionalGeneration", _T5, _prompt, generates=_BEAMS),
    "bart": Healthy(
        "Bart", "ForConditionalGeneration",
        {
            "vocab_size": _VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48,
            "encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
        },
        _sequences, level="L1",
    ),
    "whisper": Healthy("Whisper", "ForConditionalGeneration", _WHISPER, _speech),
    "wav2vec2": Healthy(
        "Wav2Vec2", "ForCTC",
        {
            "vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 48, "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2),
            "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
        },
        _waves,
    ),
    "vit": Healthy("ViT", "ForImageClassification", {**_VISION, "num_labels": 4, "intermediate_size": 48}, _pictures),
    "swin": Healthy(
        "Swin", "ForImageClassification",
        {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
         "num_labels": 4},
        _pictures, level="L1",
    ),
    "clip": Healthy(
        "CLIP", "Model",
        {"text_config": {**_ENCODER, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
         "vision_config": {**_VISION, "intermediate_size": 48}, "projection_dim": 16},
        _pictures_with_text,
    ),
}  # fmt: skip


def run(name: str, dumps: Path) -> None:
    """Run a model once under the debugger; for a process of its own, which has one debugger."""
    import transformers

    from msprobe.pytorch import PrecisionDebugger

    healthy = MODELS[name]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    configuration = getattr(transformers, f"{healthy.model}Config")(**healthy.sizes)
    configuration._attn_implementation = healthy.attention
    model = getattr(transformers, f"{healthy.model}{healthy.head}")(configuration).to(getattr(torch, healthy.dtype))
    model.train(healthy.generates is None)
    given = {
        key: value.to(model.dtype) if torch.is_tensor(value) and value.is_floating_point() else value
        for key, value in healthy.inputs().items()
    }
    debugger = PrecisionDebugger(task="statistics", level=healthy.level, dump_path=str(dumps / name))
    debugger.start(model=model)
    if healthy.generates is None:
        loss = model(**given).loss
        loss.backward()
        assert torch.isfinite(loss), f"{name} is not healthy: its loss is {loss}"
    else:
        model.generate(**given, **healthy.generates)
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    for each in sys.argv[2:]:
        run(each, Path(sys.argv[1]))
