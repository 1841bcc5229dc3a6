"""Language models of packages, against the same models of Transformers."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from package_pairs import (
    DEPTH,
    HEADS,
    HIDDEN,
    KEY_HEADS,
    VOCABULARY,
    WIDTH,
    Fault,
    Pair,
    Program,
    randomise,
    roll,
    token_ids,
)
from torch import nn

Weights = dict[str, torch.Tensor]


def causal(kind: str, **settings: Any) -> nn.Module:
    """A small causal language model of Transformers with drawn weights."""
    config = getattr(transformers, f"{kind}Config")(
        **{
            "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_attention_heads": HEADS,
            "num_hidden_layers": DEPTH, "max_position_embeddings": 64, "use_cache": False,
            "tie_word_embeddings": False, **settings,
        }
    )  # fmt: skip
    return randomise(getattr(transformers, f"{kind}ForCausalLM")(config)).train()


def llama_golden() -> Program:
    """Llama of Transformers."""
    return Program(causal("Llama", num_key_value_heads=KEY_HEADS), lambda model: model(token_ids()).logits)


def _renamed(weights: Weights, names: dict[str, str]) -> Weights:
    """Weights under other names; `{}` in a name is the number of a layer."""
    found = {}
    for mine, theirs in names.items():
        for layer in range(DEPTH) if "{}" in mine else [0]:
            if theirs.format(layer) in weights:
                found[mine.format(layer)] = weights[theirs.format(layer)]
    return found


# ---------------------------------------------------------------------------------------------------------- litgpt
_LITGPT_LLAMA = {
    "lm_head.weight": "lm_head.weight",
    "transformer.wte.weight": "model.embed_tokens.weight",
    "transformer.ln_f.weight": "model.norm.weight",
    "transformer.h.{}.norm_1.weight": "model.layers.{}.input_layernorm.weight",
    "transformer.h.{}.norm_2.weight": "model.layers.{}.post_attention_layernorm.weight",
    "transformer.h.{}.attn.proj.weight": "model.layers.{}.self_attn.o_proj.weight",
    "transformer.h.{}.mlp.fc_1.weight": "model.layers.{}.mlp.gate_proj.weight",
    "transformer.h.{}.mlp.fc_2.weight": "model.layers.{}.mlp.up_proj.weight",
    "transformer.h.{}.mlp.proj.weight": "model.layers.{}.mlp.down_proj.weight",
}


def _litgpt_llama(golden: nn.Module) -> Program:
    from litgpt.config import Config
    from litgpt.model import GPT

    weights = golden.state_dict()
    found = _renamed(weights, _LITGPT_LLAMA)
    for layer in range(DEPTH):
        parts = [weights[f"model.layers.{layer}.self_attn.{part}_proj.weight"] for part in "qkv"]
        found[f"transformer.h.{layer}.attn.qkv.weight"] = torch.cat(parts)
    model = GPT(
        Config(
            name="small", block_size=64, vocab_size=VOCABULARY, padded_vocab_size=VOCABULARY, n_layer=DEPTH,
            n_head=HEADS, n_query_groups=KEY_HEADS, n_embd=WIDTH, intermediate_size=HIDDEN, bias=False,
            norm_class_name="RMSNorm", norm_eps=golden.config.rms_norm_eps, mlp_class_name="LLaMAMLP",
            parallel_residual=False, rotary_percentage=1.0, rope_base=10000,
        )
    )  # fmt: skip
    model.load_state_dict(found)
    return Program(model.train(), lambda model: model(token_ids()))


def _litgpt_rotary(model: nn.Module) -> None:
    from litgpt.model import build_rope_cache

    model.cos, model.sin = build_rope_cache(seq_len=64, n_elem=WIDTH // HEADS, base=500)


def _litgpt_scale(model: nn.Module) -> None:
    attention = model.transformer.h[1].attn
    attention.config = copy.copy(attention.config)
    attention.config.attention_scores_scalar = 4 * WIDTH // HEADS


def _litgpt_gates(model: nn.Module) -> None:
    mlp = model.transformer.h[1].mlp
    mlp.fc_1, mlp.fc_2 = mlp.fc_2, mlp.fc_1


LITGPT_LLAMA = Pair(
    "litgpt-llama",
    llama_golden,
    _litgpt_llama,
    {
        "epsilon": Fault(
            r"h\.1\.norm_2|layers\.1\.post_attention_layernorm",
            lambda model: setattr(model.transformer.h[1].norm_2, "eps", 3e-2),
        ),
        "rotary base": Fault(r"h\.0\.attn|layers\.0\.self_attn|rotary|model\.GPT|rope", _litgpt_rotary),
        "scale": Fault(r"h\.1\.attn|layers\.1\.self_attn", _litgpt_scale),
        "gate and up": Fault(r"h\.1\.mlp|layers\.1\.mlp", _litgpt_gates),
    },
    about="One projection for query, key and value; the rotary table is a buffer of the model.",
)


# ------------------------------------------------------------------------------------------------- litgpt, GPT-NeoX
_LITGPT_NEOX = {
    "lm_head.weight": "embed_out.weight",
    "transformer.wte.weight": "gpt_neox.embed_in.weight",
    **{f"transformer.ln_f.{kind}": f"gpt_neox.final_layer_norm.{kind}" for kind in ("weight", "bias")},
    **{
        f"transformer.h.{{}}.{mine}.{kind}": f"gpt_neox.layers.{{}}.{theirs}.{kind}"
        for mine, theirs in (
            ("norm_1", "input_layernorm"), ("norm_2", "post_attention_layernorm"), ("attn.proj", "attention.dense"),
            ("mlp.fc", "mlp.dense_h_to_4h"), ("mlp.proj", "mlp.dense_4h_to_h"),
        )
        for kind in ("weight", "bias")
    },
}  # fmt: skip


def _neox_golden() -> Program:
    rotary = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    model = causal("GPTNeoX", use_parallel_residual=True, rope_parameters=rotary, hidden_act="gelu")
    return Program(model, lambda model: model(token_ids()).logits)


def _litgpt_neox(golden: nn.Module) -> Program:
    from litgpt.config import Config
    from litgpt.model import GPT

    weights = golden.state_dict()
    if "lm_head.weight" in weights:
        weights["embed_out.weight"] = weights["lm_head.weight"]
    found = _renamed(weights, _LITGPT_NEOX)
    for layer in range(DEPTH):
        for kind in ("weight", "bias"):
            each = weights[f"gpt_neox.layers.{layer}.attention.query_key_value.{kind}"]
            by_head = each.view(HEADS, 3, WIDTH // HEADS, *each.shape[1:])
            found[f"transformer.h.{layer}.attn.qkv.{kind}"] = by_head.transpose(0, 1).reshape(each.shape)
    model = GPT(
        Config(
            name="small", block_size=64, vocab_size=VOCABULARY, padded_vocab_size=VOCABULARY, n_layer=DEPTH,
            n_head=HEADS, n_embd=WIDTH, intermediate_size=HIDDEN, bias=True, lm_head_bias=False,
            norm_class_name="LayerNorm", norm_eps=golden.config.layer_norm_eps, mlp_class_name="GptNeoxMLP",
            parallel_residual=True, shared_attention_norm=False, rotary_percentage=0.25, rope_base=10000,
            gelu_approximate="none",
        )
    )  # fmt: skip
    model.load_state_dict(found)
    return Program(model.train(), lambda model: model(token_ids()))


def _litgpt_serial(model: nn.Module) -> None:
    block = model.transformer.h[1]
    block.config = copy.copy(block.config)
    block.config.parallel_residual = False


def _no_bias(linear: nn.Linear) -> None:
    linear.register_parameter("bias", None)


LITGPT_NEOX = Pair(
    "litgpt-neox",
    _neox_golden,
    _litgpt_neox,
    {
        "epsilon": Fault(
            r"h\.1\.norm_2|layers\.1\.post_attention_layernorm",
            lambda model: setattr(model.transformer.h[1].norm_2, "eps", 3e-2),
        ),
        "residual": Fault(
            r"h\.1\.(norm_2|Block|mlp)|layers\.1\.(post_attention_layernorm|GPTNeoXLayer|mlp)", _litgpt_serial
        ),
        "missing bias": Fault(
            r"h\.1\.attn|layers\.1\.attention", lambda model: _no_bias(model.transformer.h[1].attn.proj)
        ),
        "rolled weight": Fault(
            r"h\.1\.mlp\.fc|layers\.1\.mlp\.dense_h_to_4h", lambda model: roll(model.transformer.h[1].mlp.fc.weight)
        ),
    },
    about="Query, key and value by head on one side; x + attention + mlp is added in another order.",
)


# -------------------------------------------------------------------------------------------------------- torchtune
def _torchtune_llama(golden: nn.Module) -> Program:
    from torchtune.models.convert_weights import hf_to_tune
    from torchtune.models.llama2 import llama2

    model = llama2(
        vocab_size=VOCABULARY, num_layers=DEPTH, num_heads=HEADS, num_kv_heads=KEY_HEADS, embed_dim=WIDTH,
        max_seq_len=64, intermediate_dim=HIDDEN, norm_eps=golden.config.rms_norm_eps,
    )  # fmt: skip
    weights = {name: value for name, value in golden.state_dict().items() if "inv_freq" not in name}
    model.load_state_dict(hf_to_tune(weights, num_heads=HEADS, num_kv_heads=KEY_HEADS, dim=WIDTH))
    return Program(model.train(), lambda model: model(token_ids()))


def _torchtune_rotary(model: nn.Module) -> None:
    for layer in model.layers:
        layer.attn.pos_embeddings.base = 500
        layer.attn.pos_embeddings.rope_init()


def _torchtune_residual(model: nn.Module) -> None:
    layer = model.layers[1]
    layer.sa_scale = _Zero()


class _Zero(nn.Module):
    """Returns zeros, so that a branch is missing from its sum."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value * 0.0


def _torchtune_causal(model: nn.Module) -> None:
    model.layers[1].attn.is_causal = False


TORCHTUNE_LLAMA = Pair(
    "torchtune-llama",
    llama_golden,
    _torchtune_llama,
    {
        "epsilon": Fault(
            r"layers\.1\.mlp_norm|layers\.1\.post_attention_layernorm",
            lambda model: setattr(model.layers[1].mlp_norm, "eps", 3e-2),
        ),
        "rotary base": Fault(r"layers\.0\.(self_)?attn|rotary", _torchtune_rotary),
        "mask": Fault(r"layers\.1\.(self_)?attn", _torchtune_causal),
        "dropped branch": Fault(
            r"layers\.1\.(sa_scale|mlp_norm|post_attention_layernorm|TransformerSelf|LlamaDecoder)", _torchtune_residual
        ),
    },
    environment="torchtune",
    about="The rows of query and key are permuted, because the rotary embedding pairs neighbours.",
)

PAIRS = (LITGPT_LLAMA, LITGPT_NEOX, TORCHTUNE_LLAMA)
