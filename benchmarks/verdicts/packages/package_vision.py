"""Image models of packages, against the same models of other packages."""

from __future__ import annotations

from typing import Any

import torch
from package_pairs import CLASSES, DEPTH, HEADS, HIDDEN, WIDTH, Fault, Pair, Program, images, randomise, roll, token_ids
from torch import nn

Weights = dict[str, torch.Tensor]
SIZE, PATCH = 32, 8


def _pairs_of(names: dict[str, str], kinds: tuple[str, ...] = ("weight", "bias")) -> dict[str, str]:
    return {f"{mine}.{kind}": f"{theirs}.{kind}" for mine, theirs in names.items() for kind in kinds}


# --------------------------------------------------------------------------------------- timm against Transformers
def _vit_golden() -> Program:
    import transformers

    config = transformers.ViTConfig(
        image_size=SIZE, patch_size=PATCH, num_channels=3, hidden_size=WIDTH, num_hidden_layers=DEPTH,
        num_attention_heads=HEADS, intermediate_size=HIDDEN, num_labels=CLASSES, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = randomise(transformers.ViTForImageClassification(config)).train()
    return Program(model, lambda model: model(pixel_values=images(model)).logits)


def _vit_weights(golden: nn.Module) -> list[Weights]:
    """Weights of each layer of Transformers' ViT by short names, whichever release names them."""
    found = []
    for layer in range(DEPTH):
        modules = dict(golden.vit.named_modules())
        stem = next(name for name in modules if name.endswith(f"layer.{layer}") or name == f"layers.{layer}")
        own = {name[len(stem) + 1 :]: module for name, module in modules.items() if name.startswith(f"{stem}.")}
        linears = [module for module in own.values() if isinstance(module, nn.Linear)]
        norms = [module for module in own.values() if isinstance(module, nn.LayerNorm)]
        keys = ("q", "k", "v", "o", "fc1", "fc2")
        each = dict(zip(keys, linears, strict=True)) | dict(zip(("norm1", "norm2"), norms, strict=True))
        found.append({f"{key}.{kind}": getattr(each[key], kind) for key in each for kind in ("weight", "bias")})
    return found


def _timm_vit(golden: nn.Module) -> Program:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=SIZE, patch_size=PATCH, num_classes=CLASSES, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS,
        mlp_ratio=HIDDEN / WIDTH, norm_layer=lambda width, **_: nn.LayerNorm(width, eps=golden.config.layer_norm_eps),
    )  # fmt: skip
    patches = golden.vit.embeddings.patch_embeddings.projection
    found: Weights = {
        "cls_token": golden.vit.embeddings.cls_token, "pos_embed": golden.vit.embeddings.position_embeddings,
        **{f"patch_embed.proj.{kind}": getattr(patches, kind) for kind in ("weight", "bias")},
        **{f"norm.{kind}": getattr(golden.vit.layernorm, kind) for kind in ("weight", "bias")},
        **{f"head.{kind}": getattr(golden.classifier, kind) for kind in ("weight", "bias")},
    }  # fmt: skip
    names = {"attn.proj": "o", "mlp.fc1": "fc1", "mlp.fc2": "fc2", "norm1": "norm1", "norm2": "norm2"}
    for layer, each in enumerate(_vit_weights(golden)):
        found |= {f"blocks.{layer}.{mine}": each[theirs] for mine, theirs in _pairs_of(names).items()}
        for kind in ("weight", "bias"):
            found[f"blocks.{layer}.attn.qkv.{kind}"] = torch.cat([each[f"{part}.{kind}"] for part in "qkv"])
    model.load_state_dict(found)
    return Program(model.train(), lambda model: model(images(model)))


class _Nothing(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Zeros, so that a branch is missing from its sum."""
        return value * 0.0


def _timm_scale(model: nn.Module) -> None:
    attention = model.blocks[1].attn
    attention.fused_attn = False
    attention.scale = 1.0


_VIT_LAYER = r"(layer|layers|blocks|encoder_layer)[._]?1"
TIMM_VIT = Pair(
    "timm-vit",
    _vit_golden,
    _timm_vit,
    {
        "epsilon": Fault(
            r"blocks\.1\.norm2|layers?\.1\.layernorm_after", lambda model: setattr(model.blocks[1].norm2, "eps", 3e-2)
        ),
        "scale": Fault(r"blocks\.1\.attn|layers?\.1\.attention", _timm_scale),
        "activation": Fault(
            r"blocks\.1\.mlp|layers?\.1\.(mlp|intermediate)",
            lambda model: setattr(model.blocks[1].mlp, "act", nn.ReLU()),
        ),
        "dropped branch": Fault(
            r"blocks\.1\.(ls1|drop_path1|norm2|Block)|layers?\.1\.(layernorm_after|ViTLayer)",
            lambda model: setattr(model.blocks[1], "ls1", _Nothing()),
        ),
    },
    about="One projection for query, key and value; identities where the other side has none.",
)


# ---------------------------------------------------------------------------------------- torchvision against timm
def _timm_golden() -> Program:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=SIZE, patch_size=PATCH, num_classes=CLASSES, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS,
        mlp_ratio=HIDDEN / WIDTH,
    )  # fmt: skip
    return Program(randomise(model).train(), lambda model: model(images(model)))


def _torchvision_vit(golden: nn.Module) -> Program:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(SIZE, PATCH, DEPTH, HEADS, WIDTH, HIDDEN, num_classes=CLASSES)
    theirs = golden.state_dict()
    found: Weights = {"class_token": theirs["cls_token"], "encoder.pos_embedding": theirs["pos_embed"]}
    names = {"conv_proj": "patch_embed.proj", "encoder.ln": "norm", "heads.head": "head"}
    for layer in range(DEPTH):
        mine, its = f"encoder.layers.encoder_layer_{layer}", f"blocks.{layer}"
        names |= {
            f"{mine}.ln_1": f"{its}.norm1", f"{mine}.ln_2": f"{its}.norm2", f"{mine}.mlp.0": f"{its}.mlp.fc1",
            f"{mine}.mlp.3": f"{its}.mlp.fc2", f"{mine}.self_attention.out_proj": f"{its}.attn.proj",
        }  # fmt: skip
        for kind in ("weight", "bias"):
            found[f"{mine}.self_attention.in_proj_{kind}"] = theirs[f"{its}.attn.qkv.{kind}"]
    found |= {mine: theirs[its] for mine, its in _pairs_of(names).items()}
    model.load_state_dict(found)
    return Program(model.train(), lambda model: model(images(model)))


def _torchvision_block(model: nn.Module, layer: int = 1) -> Any:
    return model.encoder.layers[layer]


def _swap_key_and_value(model: nn.Module) -> None:
    weight = _torchvision_block(model).self_attention.in_proj_weight.data
    query, key, value = weight.chunk(3)
    weight.copy_(torch.cat([query, value, key]))


TORCHVISION_VIT = Pair(
    "torchvision-vit",
    _timm_golden,
    _torchvision_vit,
    {
        "epsilon": Fault(
            r"encoder_layer_1\.ln_2|blocks\.1\.norm2",
            lambda model: setattr(_torchvision_block(model).ln_2, "eps", 3e-2),
        ),
        "keys and values": Fault(r"encoder_layer_1\.self_attention|blocks\.1\.attn", _swap_key_and_value),
        "activation": Fault(
            r"encoder_layer_1\.mlp|blocks\.1\.mlp",
            lambda model: (
                _torchvision_block(model).mlp.__setitem__(1, nn.GELU("tanh"))
                or roll(_torchvision_block(model).mlp[3].weight)
            ),
        ),
        "missing bias": Fault(
            r"encoder_layer_1\.self_attention|blocks\.1\.attn",
            lambda model: _torchvision_block(model).self_attention.out_proj.bias.data.zero_(),
        ),
    },
    about="nn.MultiheadAttention against a module of its own.",
)


# ---------------------------------------------------------------------------- Transformers' ResNet against torchvision
def _resnet_golden() -> Program:
    from torchvision.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)
    # Two stages are enough; the others have most of the weights.
    model.layer3, model.layer4, model.fc = nn.Sequential(), nn.Sequential(), nn.Linear(128, CLASSES)
    return Program(randomise(model).train(), lambda model: model(images(model)))


def _transformers_resnet(golden: nn.Module) -> Program:
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128], depths=[1, 1], layer_type="basic",
        num_labels=CLASSES,
    )  # fmt: skip
    model = transformers.ResNetForImageClassification(config)
    theirs = golden.state_dict()
    names = {
        "resnet.embedder.embedder.convolution": "conv1", "resnet.embedder.embedder.normalization": "bn1",
        "classifier.1": "fc",
    }  # fmt: skip
    for stage in range(2):
        mine, its = f"resnet.encoder.stages.{stage}.layers.0", f"layer{stage + 1}.0"
        names |= {
            f"{mine}.layer.0.convolution": f"{its}.conv1", f"{mine}.layer.0.normalization": f"{its}.bn1",
            f"{mine}.layer.1.convolution": f"{its}.conv2", f"{mine}.layer.1.normalization": f"{its}.bn2",
            f"{mine}.shortcut.convolution": f"{its}.downsample.0",
            f"{mine}.shortcut.normalization": f"{its}.downsample.1",
        }  # fmt: skip
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    found = {mine: theirs[its] for mine, its in _pairs_of(names, kinds).items() if its in theirs}
    model.load_state_dict(found)
    return Program(model.train(), lambda model: model(images(model)).logits)


def _resnet_layer(model: nn.Module, stage: int = 1) -> Any:
    return model.resnet.encoder.stages[stage].layers[0]


TRANSFORMERS_RESNET = Pair(
    "transformers-resnet",
    _resnet_golden,
    _transformers_resnet,
    {
        "epsilon": Fault(
            r"stages\.1\.layers\.0\.layer\.1|layer2\.0\.bn2",
            lambda model: setattr(_resnet_layer(model).layer[1].normalization, "eps", 0.3),
        ),
        "rolled weight": Fault(
            r"stages\.1\.layers\.0\.layer\.1|layer2\.0\.conv2",
            lambda model: roll(_resnet_layer(model).layer[1].convolution.weight),
        ),
        "dropped shortcut": Fault(
            r"stages\.1\.layers\.0|layer2\.0",
            lambda model: setattr(_resnet_layer(model, 1).shortcut, "normalization", _Nothing()),
        ),
        "activation": Fault(
            r"stages\.1\.layers\.0|layer2\.0",
            lambda model: setattr(_resnet_layer(model).layer[0], "activation", nn.SiLU()),
        ),
    },
    about="Convolution and normalisation are grouped in other modules; batch statistics are buffers.",
)


# -------------------------------------------------------------------------------------- open_clip against Transformers
def _clip_golden() -> Program:
    import transformers

    text = {
        "vocab_size": 97, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "max_position_embeddings": 12, "hidden_act": "gelu", "eos_token_id": 96,
        "bos_token_id": 1, "pad_token_id": 0, "projection_dim": 32,
    }  # fmt: skip
    vision = {
        "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "image_size": SIZE, "patch_size": PATCH, "hidden_act": "gelu", "projection_dim": 32,
    }  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)
    model = randomise(transformers.CLIPModel(config)).train()
    return Program(model, lambda model: model(input_ids=_clip_ids(), pixel_values=images(model)).logits_per_image)


def _clip_ids() -> torch.Tensor:
    ids = token_ids() % 90 + 3
    ids[:, -1] = 96
    return ids


_CLIP_LAYER = {
    "ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}  # fmt: skip


def _open_clip(golden: nn.Module) -> Program:
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    model = CLIP(
        embed_dim=32,
        vision_cfg=CLIPVisionCfg(layers=2, width=WIDTH, head_width=WIDTH // HEADS, mlp_ratio=HIDDEN / WIDTH,
                                 patch_size=PATCH, image_size=SIZE),
        text_cfg=CLIPTextCfg(context_length=12, vocab_size=97, width=WIDTH, heads=HEADS, layers=2,
                             mlp_ratio=HIDDEN / WIDTH),
    )  # fmt: skip
    theirs = golden.state_dict()
    found: Weights = {
        "positional_embedding": theirs["text_model.embeddings.position_embedding.weight"],
        "token_embedding.weight": theirs["text_model.embeddings.token_embedding.weight"],
        "text_projection": theirs["text_projection.weight"].t(), "logit_scale": theirs["logit_scale"],
        "visual.class_embedding": theirs["vision_model.embeddings.class_embedding"],
        "visual.positional_embedding": theirs["vision_model.embeddings.position_embedding.weight"],
        "visual.conv1.weight": theirs["vision_model.embeddings.patch_embedding.weight"],
        "visual.proj": theirs["visual_projection.weight"].t(),
    }  # fmt: skip
    pre = next(name for name in theirs if "pre_layrnorm" in name or "pre_layernorm" in name).rsplit(".", 1)[0]
    names = {
        "ln_final": "text_model.final_layer_norm", "visual.ln_pre": pre,
        "visual.ln_post": "vision_model.post_layernorm",
    }  # fmt: skip
    for mine, its in (("transformer", "text_model"), ("visual.transformer", "vision_model")):
        for layer in range(2):
            block, other = f"{mine}.resblocks.{layer}", f"{its}.encoder.layers.{layer}"
            names |= {f"{block}.{key}": f"{other}.{value}" for key, value in _CLIP_LAYER.items()}
            for kind in ("weight", "bias"):
                parts = [theirs[f"{other}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
                found[f"{block}.attn.in_proj_{kind}"] = torch.cat(parts)
    found |= {mine: theirs[its] for mine, its in _pairs_of(names).items()}
    model.load_state_dict(found, strict=False)

    def run(model: nn.Module) -> torch.Tensor:
        image, text, scale = model(images(model), _clip_ids())
        return scale * image @ text.t()

    return Program(model.train(), run)


def _clip_mask(model: nn.Module) -> None:
    model.attn_mask = torch.zeros_like(model.attn_mask)


OPEN_CLIP = Pair(
    "open-clip",
    _clip_golden,
    _open_clip,
    {
        "epsilon": Fault(
            r"visual\.transformer\.resblocks\.1\.ln_2|vision_model\.encoder\.layers\.1\.layer_norm2",
            lambda model: setattr(model.visual.transformer.resblocks[1].ln_2, "eps", 3e-2),
        ),
        "mask": Fault(
            r"(?<!visual\.)transformer\.resblocks\.0\.attn|text_model\.encoder\.layers\.0\.self_attn|causal|mask",
            _clip_mask,
        ),
        "rolled weight": Fault(
            r"(?<!visual\.)transformer\.resblocks\.1\.mlp|text_model\.encoder\.layers\.1\.mlp",
            lambda model: roll(model.transformer.resblocks[1].mlp.c_fc.weight),
        ),
        "activation": Fault(
            r"visual\.transformer\.resblocks\.1\.mlp|vision_model\.encoder\.layers\.1\.mlp",
            lambda model: setattr(model.visual.transformer.resblocks[1].mlp, "gelu", nn.ReLU()),
        ),
    },
    about="Two towers that run in another order; projections are parameters and not modules.",
)

PAIRS = (TIMM_VIT, TORCHVISION_VIT, TRANSFORMERS_RESNET, OPEN_CLIP)
