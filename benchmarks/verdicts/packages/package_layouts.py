"""Models in another layout than those of Transformers: positions first, shared layers, identities, slopes, signals."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from package_pairs import (
    BATCH,
    DEPTH,
    HEADS,
    HIDDEN,
    VOCABULARY,
    WIDTH,
    Fault,
    Pair,
    Program,
    randomise,
    roll,
    token_ids,
)  # fmt: skip
from torch import nn

ENVIRONMENT = "layouts"
Weights = dict[str, torch.Tensor]


def _waves(model: nn.Module, length: int = 600) -> torch.Tensor:
    """A batch of signals with the shape [BATCH, length] and the type of the model's parameters."""
    found = torch.randn(BATCH, length, generator=torch.Generator().manual_seed(5))
    return found.to(next(model.parameters()).dtype)


class _Nothing(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Zeros, so that a branch is missing from its sum."""
        return value * 0.0


# ------------------------------------------------------------------------------------------------- fair-esm, ESM-2
def _proteins() -> torch.Tensor:
    ids = token_ids() % 20 + 4
    ids[:, 0], ids[:, -1], ids[:, 3] = 0, 2, 32
    return ids


def _esm_golden() -> Program:
    config = transformers.EsmConfig(
        vocab_size=33, mask_token_id=32, pad_token_id=1, hidden_size=WIDTH, num_hidden_layers=DEPTH,
        num_attention_heads=HEADS, intermediate_size=4 * WIDTH, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, max_position_embeddings=64, position_embedding_type="rotary",
        layer_norm_eps=1e-5, emb_layer_norm_before=False, token_dropout=True, tie_word_embeddings=True,
    )  # fmt: skip
    model = randomise(transformers.EsmForMaskedLM(config)).train()
    return Program(model, lambda model: model(input_ids=_proteins()).logits)


_ESM_LAYER = {
    "self_attn.q_proj": "attention.self.query", "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value", "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.LayerNorm", "fc1": "intermediate.dense", "fc2": "output.dense",
    "final_layer_norm": "LayerNorm",
}  # fmt: skip


def _esm(golden: nn.Module) -> Program:
    from esm.model.esm2 import ESM2

    theirs = golden.state_dict()
    words = theirs["esm.embeddings.word_embeddings.weight"]
    found: Weights = {"embed_tokens.weight": words, "lm_head.weight": words, "lm_head.bias": theirs["lm_head.bias"]}
    names = {
        "emb_layer_norm_after": "esm.encoder.emb_layer_norm_after", "lm_head.dense": "lm_head.dense",
        "lm_head.layer_norm": "lm_head.layer_norm",
    }  # fmt: skip
    for layer in range(DEPTH):
        names |= {f"layers.{layer}.{mine}": f"esm.encoder.layer.{layer}.{its}" for mine, its in _ESM_LAYER.items()}
    for mine, its in names.items():
        found |= {f"{mine}.{kind}": theirs[f"{its}.{kind}"] for kind in ("weight", "bias")}
    model = ESM2(num_layers=DEPTH, embed_dim=WIDTH, attention_heads=HEADS)
    missing = model.load_state_dict(found, strict=False).missing_keys
    assert all("rot_emb" in name or "contact_head" in name for name in missing), missing
    return Program(model.train(), lambda model: model(_proteins())["logits"])


def _esm_scale(model: nn.Module) -> None:
    model.layers[1].self_attn.scaling *= 2


def _esm_heads(model: nn.Module) -> None:
    for part in (model.layers[1].self_attn.k_proj.weight, model.layers[1].self_attn.k_proj.bias):
        roll(part, WIDTH // HEADS)


ESM = Pair(
    "fair-esm",
    _esm_golden,
    _esm,
    {
        "epsilon": Fault(
            r"layers?\.1\.(final_layer_norm|LayerNorm)",
            lambda model: setattr(model.layers[1].final_layer_norm, "eps", 3e-2),
        ),
        "scale": Fault(r"layers\.1\.self_attn|layer\.1\.attention", _esm_scale),
        "swapped heads": Fault(r"layers\.1\.self_attn|layer\.1\.attention", _esm_heads),
        "token dropout": Fault(r"embed|ESM2|layers?\.0\.", lambda model: setattr(model, "token_dropout", False)),
        "rotary": Fault(
            r"layers\.1\.self_attn|layer\.1\.attention",
            lambda model: model.layers[1].self_attn.rot_emb.inv_freq.mul_(1.5),
        ),
    },
    environment=ENVIRONMENT,
    about="Positions first and batch second; batch and heads are one axis in attention.",
)


# ------------------------------------------------------------------------------------------- curated-transformers
def _everything(ids: torch.Tensor) -> Any:
    from curated_transformers.layers.attention import AttentionMask

    return AttentionMask(torch.ones_like(ids, dtype=torch.bool))


def _albert_golden() -> Program:
    config = transformers.AlbertConfig(
        vocab_size=VOCABULARY, embedding_size=32, hidden_size=WIDTH, num_hidden_layers=DEPTH, num_hidden_groups=1,
        num_attention_heads=HEADS, intermediate_size=HIDDEN, hidden_act="gelu", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, max_position_embeddings=64, classifier_dropout_prob=0.0,
    )  # fmt: skip
    model = randomise(transformers.AlbertModel(config, add_pooling_layer=False)).train()
    return Program(model, lambda model: model(input_ids=token_ids()).last_hidden_state)


def _curated(kind: str, golden: nn.Module) -> nn.Module:
    from curated_transformers import models

    made = getattr(models, kind)
    model = made.from_hf_config(hf_config=golden.config.to_dict())
    found = made.state_dict_from_hf(golden.state_dict())
    own = model.state_dict()
    assert not own.keys() - found.keys(), own.keys() - found.keys()
    model.load_state_dict({name: found[name] for name in own})
    return model.train()


def _albert(golden: nn.Module) -> Program:
    return Program(
        _curated("ALBERTEncoder", golden),
        lambda model: model(token_ids(), _everything(token_ids())).last_hidden_layer_state,
    )


def _albert_layer(model: nn.Module) -> Any:
    return model.groups[0].group_layers[0]


_ALBERT = r"(group_layers|albert_layers)\.0"
ALBERT = Pair(
    "curated-albert",
    _albert_golden,
    _albert,
    {
        "epsilon": Fault(
            _ALBERT + r"\.(attn_residual_layer_norm|attention\.LayerNorm)",
            lambda model: setattr(_albert_layer(model).attn_residual_layer_norm, "eps", 3e-2),
        ),
        "activation": Fault(
            _ALBERT + r"\.(ffn|activation|ffn_output|AlbertLayer)",
            lambda model: setattr(_albert_layer(model).ffn, "activation", nn.SiLU()),
        ),
        "rolled weight": Fault(
            _ALBERT + r"\.(mha|attention)", lambda model: roll(_albert_layer(model).mha.value.weight)
        ),
        "dropped branch": Fault(
            _ALBERT + r"\.(ffn|ffn_output|ffn_output_dropout|ffn_residual_layer_norm|full_layer_layer_norm|dropout"
            r"|AlbertLayer|EncoderLayer)",
            lambda model: setattr(_albert_layer(model), "ffn_output_dropout", _Nothing()),
        ),
    },
    environment=ENVIRONMENT,
    about="All layers are one layer, called several times.",
)


def _mpt_golden() -> Program:
    config = transformers.MptConfig(
        d_model=WIDTH, n_heads=HEADS, n_layers=DEPTH, expansion_ratio=4, max_seq_len=64, vocab_size=VOCABULARY,
        use_cache=False,
    )  # fmt: skip
    model = randomise(transformers.MptForCausalLM(config)).train()
    return Program(model, lambda model: model(token_ids(), use_cache=False).logits)


def _mpt(golden: nn.Module) -> Program:
    return Program(_curated("MPTCausalLM", golden), lambda model: model(token_ids(), _everything(token_ids())).logits)


def _mpt_layer(model: nn.Module) -> Any:
    return model.decoder.layers[1]


def _mpt_slopes(model: nn.Module) -> None:
    scorer = _mpt_layer(model).mha.attention_scorer
    scorer.linear_biases = copy.deepcopy(scorer.linear_biases)
    scorer.linear_biases.slopes.mul_(3)


def _mpt_parts(model: nn.Module) -> None:
    weight = _mpt_layer(model).mha.input.weight
    query, key, value = weight.chunk(3)
    weight.copy_(torch.cat([key, query, value]))


_MPT = r"(layers|blocks)\.1\."
MPT = Pair(
    "curated-mpt",
    _mpt_golden,
    _mpt,
    {
        "epsilon": Fault(
            _MPT + r"(ffn_input_layer_norm|norm_2)",
            lambda model: setattr(_mpt_layer(model).ffn_input_layer_norm, "eps", 3e-2),
        ),
        "slopes": Fault(_MPT + r"(mha|attn)", _mpt_slopes),
        "query and key": Fault(_MPT + r"(mha|attn)", _mpt_parts),
        "activation": Fault(_MPT + r"ffn", lambda model: setattr(_mpt_layer(model).ffn, "activation", nn.ReLU())),
    },
    environment=ENVIRONMENT,
    about="Positions are slopes of the scores; there are no biases; the output layer is the embedding's weight.",
)


# ------------------------------------------------------------------------------------------------------ torchaudio
def _wav2vec2_golden() -> Program:
    config = transformers.Wav2Vec2Config(
        vocab_size=32, hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=HEADS, intermediate_size=96,
        conv_dim=(32, 32, 32), conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2), num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, hidden_dropout=0.0, activation_dropout=0.0, attention_dropout=0.0,
        feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False,
    )  # fmt: skip
    model = randomise(transformers.Wav2Vec2ForCTC(config)).train()
    return Program(model, lambda model: model(_waves(model)).logits)


def _torchaudio(golden: nn.Module) -> Program:
    from torchaudio.models.wav2vec2.utils.import_huggingface import import_huggingface_model

    return Program(import_huggingface_model(golden).train(), lambda model: model(_waves(model))[0])


def _audio_layer(model: nn.Module) -> Any:
    return model.encoder.transformer.layers[1]


def _audio_heads(model: nn.Module) -> None:
    query = _audio_layer(model).attention.q_proj
    for part in (query.weight, query.bias):
        roll(part, WIDTH // HEADS)


def _audio_positions(model: nn.Module) -> None:
    """Cut the first and not the last position."""
    positions = model.encoder.transformer.pos_conv_embed

    def forward(value: torch.Tensor) -> torch.Tensor:
        found = positions.conv(value.transpose(-2, -1))[..., 1:]
        return nn.functional.gelu(found).transpose(-2, -1)

    positions.forward = forward


WAV2VEC2 = Pair(
    "torchaudio-wav2vec2",
    _wav2vec2_golden,
    _torchaudio,
    {
        "epsilon": Fault(
            r"layers\.1\.final_layer_norm", lambda model: setattr(_audio_layer(model).final_layer_norm, "eps", 3e-2)
        ),
        "swapped heads": Fault(r"layers\.1\.attention", _audio_heads),
        "positions": Fault(r"pos_conv_embed", _audio_positions),
        "dropped branch": Fault(
            r"layers\.1\.(dropout|attention|layer_norm|EncoderLayer|Wav2Vec2EncoderLayer)",
            lambda model: setattr(_audio_layer(model), "dropout", _Nothing()),
        ),
        "rolled weight": Fault(
            r"layers\.1\.feed_forward\.(intermediate_dense|output_dense|FeedForward|Wav2Vec2FeedForward)",
            lambda model: roll(_audio_layer(model).feed_forward.intermediate_dense.weight),
        ),
    },
    environment=ENVIRONMENT,
    about="The weight of a convolution is normalised; one normalisation is over groups of channels.",
)


PAIRS = (ESM, ALBERT, MPT, WAV2VEC2)
