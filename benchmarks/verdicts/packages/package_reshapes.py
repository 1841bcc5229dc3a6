"""Models that hold their weights in another shape: one for each head, a convolution for a layer, patches as rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers
from package_pairs import (
    CLASSES,
    DEPTH,
    HEADS,
    VOCABULARY,
    WIDTH,
    Fault,
    Pair,
    Program,
    images,
    randomise,
    roll,
    token_ids,
)  # fmt: skip
from torch import nn
from torch.nn import functional as F

ENVIRONMENT = "reshapes"
SIZE, PATCH = 32, 8
KINDS = ("weight", "bias")
Weights = dict[str, torch.Tensor]


def _loaded(model: nn.Module, weights: Weights) -> nn.Module:
    """The model with these parameters, which have to be all that it has."""
    names = {name for name, _ in model.named_parameters()}
    assert names == set(weights), names ^ set(weights)
    model.load_state_dict({name: value.detach().contiguous() for name, value in weights.items()}, strict=False)
    return model.train()


class _Nothing(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Zeros, so that a branch is missing from its sum."""
        return value * 0.0


# ------------------------------------------------------------------------------------------------- TransformerLens
def _gpt2_golden() -> Program:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_head=HEADS, n_layer=DEPTH, n_positions=64, n_inner=4 * WIDTH,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = randomise(transformers.GPT2LMHeadModel(config)).train()
    return Program(model, lambda model: model(token_ids()).logits)


def _lens(golden: nn.Module) -> Program:
    import transformer_lens

    config = transformer_lens.HookedTransformerConfig(
        n_layers=DEPTH, d_model=WIDTH, n_ctx=64, d_head=WIDTH // HEADS, n_heads=HEADS, d_mlp=4 * WIDTH,
        d_vocab=VOCABULARY, act_fn="gelu_new", normalization_type="LN", device="cpu", seed=0,
    )  # fmt: skip
    theirs: Any = golden.transformer
    found: Weights = {
        "embed.W_E": theirs.wte.weight, "pos_embed.W_pos": theirs.wpe.weight, "ln_final.w": theirs.ln_f.weight,
        "ln_final.b": theirs.ln_f.bias, "unembed.W_U": theirs.wte.weight.T, "unembed.b_U": torch.zeros(VOCABULARY),
    }  # fmt: skip
    for layer, block in enumerate(theirs.h):
        names = {"ln1": block.ln_1, "ln2": block.ln_2}
        own = {f"{name}.{kind[0]}": getattr(norm, kind) for name, norm in names.items() for kind in KINDS}
        own |= {"mlp.W_in": block.mlp.c_fc.weight, "mlp.b_in": block.mlp.c_fc.bias}
        own |= {"mlp.W_out": block.mlp.c_proj.weight, "mlp.b_out": block.mlp.c_proj.bias}
        own |= {"attn.W_O": block.attn.c_proj.weight.reshape(HEADS, -1, WIDTH), "attn.b_O": block.attn.c_proj.bias}
        weights, biases = block.attn.c_attn.weight.chunk(3, 1), block.attn.c_attn.bias.chunk(3)
        for name, weight, bias in zip("QKV", weights, biases):
            own[f"attn.W_{name}"] = weight.reshape(WIDTH, HEADS, -1).transpose(0, 1)
            own[f"attn.b_{name}"] = bias.reshape(HEADS, -1)
        found |= {f"blocks.{layer}.{name}": value for name, value in own.items()}
    model = _loaded(transformer_lens.HookedTransformer(config), found)
    return Program(model, lambda model: model(token_ids(), return_type="logits"))


_LENS = r"(blocks|h)\.1\."
LENS = Pair(
    "transformer-lens",
    _gpt2_golden,
    _lens,
    {
        "epsilon": Fault(_LENS + r"(ln2|ln_2)", lambda model: setattr(model.blocks[1].ln2, "eps", 3e-2)),
        "activation": Fault(_LENS + r"mlp", lambda model: setattr(model.blocks[1].mlp, "act_fn", F.silu)),
        "scale": Fault(_LENS + r"attn", lambda model: setattr(model.blocks[1].attn, "attn_scale", 8.0)),
        "swapped heads": Fault(_LENS + r"attn", lambda model: roll(model.blocks[1].attn.W_K)),
        "positions": Fault(
            r"embed|wpe|^Tensor.__add__.0|blocks\.0\.TransformerBlock", lambda model: roll(model.pos_embed.W_pos)
        ),
    },
    environment=ENVIRONMENT,
    about="A weight for each head, products by einsum, modules that only hand values on, a scale that divides.",
    gradients=False,
)


# ----------------------------------------------------------------------------------------------- mlp-mixer-pytorch
def _mixer_golden() -> Program:
    import timm

    model = timm.models.mlp_mixer.MlpMixer(
        num_classes=CLASSES, img_size=SIZE, patch_size=PATCH, num_blocks=DEPTH, embed_dim=WIDTH, mlp_ratio=(2.0, 4.0),
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
    )  # fmt: skip
    return Program(randomise(model).train(), lambda model: model(images(model, SIZE)))


def _mixer(golden: nn.Module) -> Program:
    from mlp_mixer_pytorch import MLPMixer

    theirs = dict(golden.named_parameters())
    found: Weights = {
        "1.weight": theirs["stem.proj.weight"].permute(0, 2, 3, 1).reshape(WIDTH, -1),
        "1.bias": theirs["stem.proj.bias"],
    }
    for kind in KINDS:
        found |= {f"{DEPTH + 2}.{kind}": theirs[f"norm.{kind}"], f"{DEPTH + 4}.{kind}": theirs[f"head.{kind}"]}
        for layer in range(DEPTH):
            for number, (norm, name) in enumerate((("norm1", "mlp_tokens"), ("norm2", "mlp_channels"))):
                mine, its = f"{layer + 2}.{number}", f"blocks.{layer}"
                found[f"{mine}.norm.{kind}"] = theirs[f"{its}.{norm}.{kind}"]
                for place, linear in ((0, "fc1"), (3, "fc2")):
                    value = theirs[f"{its}.{name}.{linear}.{kind}"]
                    is_convolution = number == 0 and kind == "weight"
                    found[f"{mine}.fn.{place}.{kind}"] = value[..., None] if is_convolution else value
    model = MLPMixer(
        image_size=SIZE, channels=3, patch_size=PATCH, dim=WIDTH, depth=DEPTH, num_classes=CLASSES, expansion_factor=2,
        expansion_factor_token=4,
    )  # fmt: skip
    return Program(_loaded(model, found), lambda model: model(images(model, SIZE)))


def _mixer_patches(model: nn.Module) -> None:
    weight = model[1].weight
    weight.copy_(weight.reshape(WIDTH, PATCH, PATCH, 3).transpose(1, 2).reshape(WIDTH, -1))


def _mixer_residual(model: nn.Module) -> None:
    block = model[3][0]
    block.forward = lambda value: block.fn(block.norm(value))


MIXER = Pair(
    "mlp-mixer",
    _mixer_golden,
    _mixer,
    {
        "epsilon": Fault(r"blocks\.1\.norm2|\b3\.1\.norm", lambda model: setattr(model[3][1].norm, "eps", 3e-2)),
        "activation": Fault(
            r"blocks\.1\.mlp_channels|\b3\.1\.fn", lambda model: model[3][1].fn.__setitem__(1, nn.SiLU())
        ),
        "rolled tokens": Fault(r"blocks\.1\.mlp_tokens|\b3\.0\.", lambda model: roll(model[3][0].fn[0].weight)),
        "dropped residual": Fault(r"blocks\.1\.|\b3\.0", _mixer_residual),
        "patches": Fault(r"stem|Module\.[01]\.", _mixer_patches),
    },
    environment=ENVIRONMENT,
    about="Tokens are mixed by convolutions of width 1, and patches are cut by a reshape and a product.",
)


# ----------------------------------------------------------------------------------------------------------- MONAI
def _vit_golden() -> Program:
    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS, intermediate_size=4 * WIDTH,
        image_size=SIZE, patch_size=PATCH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-5,
    )  # fmt: skip
    model = randomise(transformers.ViTModel(config)).train()
    return Program(model, lambda model: model(images(model, SIZE)).pooler_output)


_MONAI_LAYER = {
    "attn.out_proj": "attention.o_proj", "norm1": "layernorm_before", "norm2": "layernorm_after",
    "mlp.linear1": "mlp.fc1", "mlp.linear2": "mlp.fc2",
}  # fmt: skip


def _monai(golden: nn.Module) -> Program:
    from monai.networks.nets import ViT

    theirs = dict(golden.named_parameters())
    positions = theirs["embeddings.position_embeddings"]
    found: Weights = {
        "patch_embedding.position_embeddings": positions[:, 1:],
        "cls_token": theirs["embeddings.cls_token"] + positions[:, :1],
    }
    for kind in KINDS:
        found[f"patch_embedding.patch_embeddings.{kind}"] = theirs[f"embeddings.patch_embeddings.projection.{kind}"]
        found |= {f"norm.{kind}": theirs[f"layernorm.{kind}"]}
        found |= {f"classification_head.0.{kind}": theirs[f"pooler.dense.{kind}"]}
        for layer in range(DEPTH):
            parts = [theirs[f"layers.{layer}.attention.{part}_proj.{kind}"] for part in "qkv"]
            found[f"blocks.{layer}.attn.qkv.{kind}"] = torch.cat(parts)
            for mine, its in _MONAI_LAYER.items():
                found[f"blocks.{layer}.{mine}.{kind}"] = theirs[f"layers.{layer}.{its}.{kind}"]
    model = ViT(
        3, SIZE, PATCH, hidden_size=WIDTH, mlp_dim=4 * WIDTH, num_layers=DEPTH, num_heads=HEADS, classification=True,
        num_classes=WIDTH, spatial_dims=2, qkv_bias=True,
    )  # fmt: skip
    # Norms that this network does not use.
    found |= {name: value for name, value in model.named_parameters() if "norm_cross_attn" in name}
    return Program(_loaded(model, found), lambda model: model(images(model, SIZE))[0])


def _monai_parts(model: nn.Module) -> None:
    weight = model.blocks[1].attn.qkv.weight
    query, key, value = weight.chunk(3)
    weight.copy_(torch.cat([key, query, value]))


def _monai_scale(model: nn.Module) -> None:
    model.blocks[1].attn.scale *= 2


_MONAI = r"(blocks|layers)\.1\."
MONAI = Pair(
    "monai-vit",
    _vit_golden,
    _monai,
    {
        "epsilon": Fault(
            _MONAI + r"(norm2|layernorm_after)", lambda model: setattr(model.blocks[1].norm2, "eps", 3e-2)
        ),
        "activation": Fault(_MONAI + r"mlp", lambda model: setattr(model.blocks[1].mlp, "fn", nn.SiLU())),
        "scale": Fault(_MONAI + r"att", _monai_scale),
        "query and key": Fault(_MONAI + r"att", _monai_parts),
        "dropped branch": Fault(
            _MONAI + r"(mlp|ViTLayer|TransformerBlock)", lambda model: setattr(model.blocks[1].mlp, "drop2", _Nothing())
        ),
    },
    environment=ENVIRONMENT,
    about="The position of the class token is part of that token, and attention is einsum over one projection.",
    gradients=False,
)


PAIRS = (LENS, MIXER, MONAI)
