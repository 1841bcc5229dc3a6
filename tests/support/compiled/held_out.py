"""Models of Transformers, timm, torchvision and others with which no constant of `PrecisionChecker` was chosen.

``benchmarks/compiled_modules.py --held-out`` takes all of them. If a package is missing or does not import, it says so,
and leaves out the models of this package.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from compiled.models import Made, of_words

_WORDS = 64


_PACKAGES = {"timm": "timm", "torchvision": "torchvision", "diffusers": "diffusers.models.resnet",
             "segmentation": "segmentation_models_pytorch"}  # fmt: skip
"""By the first word of a model's name; a model without an entry is one of Transformers."""


def _imported(path: str) -> Any:
    """A module, or a name in one.

    Raises:
        ImportError: it is missing, or it is built for another PyTorch and raises another error.
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except (ImportError, RuntimeError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ImportError(f"{module.partition('.')[0]} cannot be imported: {lines[-1]}") from None


def _class(path: str) -> type:
    module, _, name = path.rpartition(".")
    found: type = _imported(f"{module}:{name}")
    return found


def _transformer(model: str, config: str, block: str, step: Callable[[Any], Any], **settings: Any) -> Made:
    """A model of Transformers of random weights; `block` is the module path and name of what is checked."""
    made = _imported(f"transformers:{model}")(_imported(f"transformers:{config}")(**settings))
    return Made(made, tuple(_class(f"transformers.models.{each}") for each in block.split()), step(made))


def _words(model: Any) -> Callable[[Any], torch.Tensor]:
    return of_words(model, _WORDS)


def _squares(*shape: int) -> Callable[[Any], Callable[[Any], torch.Tensor]]:
    """A step of a model of images or sounds, whatever it wraps its result in."""

    def of(model: Any) -> Callable[[Any], torch.Tensor]:
        inputs = torch.randn(*shape)

        def step(model: Any) -> torch.Tensor:
            output = model(inputs.to(next(model.parameters()).dtype))
            tensor = output if isinstance(output, torch.Tensor) else output[0]
            loss: torch.Tensor = tensor.float().square().mean()
            loss.backward()
            return loss

        return step

    return of


_DECODER = {
    "vocab_size": _WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def mamba() -> Made:
    return _transformer(
        "MambaForCausalLM", "MambaConfig", "mamba.modeling_mamba.MambaBlock", _words,
        vocab_size=_WORDS, hidden_size=32, state_size=8, num_hidden_layers=2, use_cache=False,
    )  # fmt: skip


def gemma2() -> Made:
    return _transformer(
        "Gemma2ForCausalLM", "Gemma2Config", "gemma2.modeling_gemma2.Gemma2DecoderLayer", _words,
        **_DECODER, head_dim=8, query_pre_attn_scalar=8, sliding_window=8,
    )  # fmt: skip


def phi3() -> Made:
    return _transformer("Phi3ForCausalLM", "Phi3Config", "phi3.modeling_phi3.Phi3DecoderLayer", _words, **_DECODER)


def qwen3() -> Made:
    return _transformer(
        "Qwen3ForCausalLM", "Qwen3Config", "qwen3.modeling_qwen3.Qwen3DecoderLayer", _words, **_DECODER, head_dim=8
    )


def mixtral() -> Made:
    return _transformer(
        "MixtralForCausalLM", "MixtralConfig", "mixtral.modeling_mixtral.MixtralDecoderLayer", _words,
        **_DECODER, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip


def falcon() -> Made:
    return _transformer(
        "FalconForCausalLM", "FalconConfig", "falcon.modeling_falcon.FalconDecoderLayer", _words,
        vocab_size=_WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True,
        new_decoder_architecture=False, use_cache=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip


def gpt_neox() -> Made:
    settings = {name: value for name, value in _DECODER.items() if name != "num_key_value_heads"}
    return _transformer(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", "gpt_neox.modeling_gpt_neox.GPTNeoXLayer", _words, **settings
    )


def opt() -> Made:
    return _transformer(
        "OPTForCausalLM", "OPTConfig", "opt.modeling_opt.OPTDecoderLayer", _words,
        vocab_size=_WORDS, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
        word_embed_proj_dim=32, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip


def deberta() -> Made:
    return _transformer(
        "DebertaV2ForMaskedLM", "DebertaV2Config", "deberta_v2.modeling_deberta_v2.DebertaV2Layer", _words,
        vocab_size=_WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, relative_attention=True, pos_att_type=["p2c", "c2p"],
    )  # fmt: skip


def t5() -> Made:
    return _transformer(
        "T5ForConditionalGeneration", "T5Config", "t5.modeling_t5.T5Block", _words,
        vocab_size=_WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
        use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip


def whisper() -> Made:
    def step_of(model: Any) -> Callable[[Any], torch.Tensor]:
        sounds, ids = torch.randn(2, 16, 64), torch.randint(0, _WORDS, (2, 10))

        def step(model: Any) -> torch.Tensor:
            dtype = next(model.parameters()).dtype
            loss: torch.Tensor = model(input_features=sounds.to(dtype), labels=ids, use_cache=False).loss
            loss.backward()
            return loss

        return step

    return _transformer(
        "WhisperForConditionalGeneration", "WhisperConfig",
        "whisper.modeling_whisper.WhisperEncoderLayer whisper.modeling_whisper.WhisperDecoderLayer", step_of,
        vocab_size=_WORDS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=32,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip


def convnext() -> Made:
    return _transformer(
        "ConvNextV2ForImageClassification", "ConvNextV2Config", "convnextv2.modeling_convnextv2.ConvNextV2Layer",
        _squares(2, 3, 32, 32), hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, patch_size=4, num_labels=5,
    )  # fmt: skip


def clip() -> Made:
    def step_of(model: Any) -> Callable[[Any], torch.Tensor]:
        images, ids = torch.randn(3, 3, 16, 16), torch.randint(3, _WORDS, (3, 8))

        def step(model: Any) -> torch.Tensor:
            pixels = images.to(next(model.parameters()).dtype)
            loss: torch.Tensor = model(input_ids=ids, pixel_values=pixels, return_loss=True).loss
            loss.backward()
            return loss

        return step

    side = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    return _transformer(
        "CLIPModel", "CLIPConfig", "clip.modeling_clip.CLIPEncoderLayer", step_of, projection_dim=16,
        text_config={**side, "vocab_size": _WORDS, "max_position_embeddings": 16, "eos_token_id": 2, "pad_token_id": 1},
        vision_config={**side, "image_size": 16, "patch_size": 8},
    )  # fmt: skip


def swin() -> Made:
    return _transformer(
        "Swinv2ForImageClassification", "Swinv2Config", "swinv2.modeling_swinv2.Swinv2Layer", _squares(2, 3, 32, 32),
        image_size=32, patch_size=4, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4, num_labels=5,
    )  # fmt: skip


def wav2vec() -> Made:
    return _transformer(
        "Wav2Vec2Model", "Wav2Vec2Config", "wav2vec2.modeling_wav2vec2.Wav2Vec2EncoderLayer", _squares(2, 800),
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=[16, 16],
        conv_stride=[5, 2], conv_kernel=[10, 3], num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0, layerdrop=0.0,
    )  # fmt: skip


def efficientnet() -> Made:
    import timm
    from timm.models._efficientnet_blocks import DepthwiseSeparableConv, InvertedResidual

    model = timm.create_model("test_efficientnet", pretrained=False, num_classes=5)
    return Made(model, (DepthwiseSeparableConv, InvertedResidual), _squares(2, 3, 64, 64)(model))


def mixer() -> Made:
    from timm.models.mlp_mixer import MixerBlock, MlpMixer

    model = MlpMixer(num_classes=5, img_size=32, patch_size=8, num_blocks=2, embed_dim=32)
    return Made(model, (MixerBlock,), _squares(2, 3, 32, 32)(model))


def xcit() -> Made:
    from timm.models.xcit import XCABlock, Xcit

    model = Xcit(img_size=64, num_classes=5, embed_dim=32, depth=2, num_heads=4, cls_attn_layers=1, eta=1.0)
    return Made(model, (XCABlock,), _squares(2, 3, 64, 64)(model))


def resnet() -> Made:
    from torchvision.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5, width_per_group=64)
    return Made(model, (BasicBlock,), _squares(2, 3, 64, 64)(model))


def mobilenet() -> Made:
    from torchvision.models.mobilenetv3 import InvertedResidual, InvertedResidualConfig, MobileNetV3

    blocks = [
        InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1.0),
        InvertedResidualConfig(16, 5, 48, 24, True, "HS", 2, 1, 1.0),
    ]
    model = MobileNetV3(blocks, 32, num_classes=5, dropout=0.1)
    return Made(model, (InvertedResidual,), _squares(2, 3, 64, 64)(model))


def unet() -> Made:
    from diffusers import UNet2DModel
    from diffusers.models.resnet import ResnetBlock2D

    model = UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32),
        norm_num_groups=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"), attention_head_dim=8,
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    images = torch.randn(2, 3, 16, 16)

    def step(model: Any) -> torch.Tensor:
        loss: torch.Tensor = model(images.to(next(model.parameters()).dtype), 10).sample.float().square().mean()
        loss.backward()
        return loss

    return Made(model, (ResnetBlock2D,), step)


def segmentation() -> Made:
    import segmentation_models_pytorch as segmentation_models
    from segmentation_models_pytorch.decoders.unet.decoder import UnetDecoderBlock

    model = segmentation_models.Unet(
        "resnet18", encoder_weights=None, encoder_depth=3, decoder_channels=(64, 32, 16), classes=2,
        decoder_attention_type="scse",
    )  # fmt: skip
    return Made(model, (UnetDecoderBlock,), _squares(2, 3, 32, 32)(model))


HELD_OUT: dict[str, Callable[[], Made]] = {
    "Mamba": mamba, "Gemma 2": gemma2, "Phi-3": phi3, "Qwen3": qwen3, "Mixtral": mixtral, "Falcon, ALiBi": falcon,
    "GPT-NeoX": gpt_neox, "OPT": opt, "DeBERTa v2": deberta, "T5": t5, "Whisper": whisper, "ConvNeXt V2": convnext,
    "CLIP": clip, "Swin v2": swin, "wav2vec 2": wav2vec, "timm EfficientNet": efficientnet, "timm Mixer": mixer,
    "timm XCiT": xcit, "torchvision ResNet": resnet, "torchvision MobileNet v3": mobilenet,
    "diffusers UNet2D": unet, "segmentation U-Net": segmentation,
}  # fmt: skip


def held_out(name: str, seed: int, dtype: str = "float32") -> Made:
    """The model of this name, the same one for the same seed, with parameters of this dtype.

    Raises:
        ImportError: its package is missing or does not import.
    """
    _imported(_PACKAGES.get(name.split()[0], "transformers"))
    torch.manual_seed(seed)
    made = HELD_OUT[name]()
    made.model.to(getattr(torch, dtype))
    _with_gradients(made.model)
    return made


def _with_gradients(model: nn.Module) -> None:
    """In training, with parameters that are not the zeros and ones of an initialisation, which hide faults."""
    model.train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 or not parameter.any():
                parameter.add_(0.1 * torch.randn_like(parameter))
