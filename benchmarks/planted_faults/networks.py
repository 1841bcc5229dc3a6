"""Ten small networks of ten kinds, each with the inputs of one training step.

The weights are drawn with the scales of a trained network and not with those of an untrained one: with the usual
0.02 attention is uniform, activations are linear, and a wrong constant changes nothing that anyone could find.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, BATCH, LENGTH = 97, 2, 12


@dataclass
class Network:
    """A model, the inputs of one step, and its forward pass, which ends in a loss."""

    model: nn.Module
    inputs: dict[str, Tensor]
    forward: Callable[..., Tensor]

    def loss(self) -> Tensor:
        return self.forward(**self.inputs)

    def to(self, dtype: torch.dtype) -> None:
        """Weights and inputs in another precision."""
        self.model.to(dtype)
        for name, value in self.inputs.items():
            if value.is_floating_point():
                self.inputs[name] = value.to(dtype)


def build(name: str, seed: int = 0) -> Network:
    """The network `name`; every call with the same seed gives the same weights and inputs."""
    torch.manual_seed(seed)
    network = NETWORKS[name]()
    network.model.train()
    draw_weights(network.model)
    return network


def draw_weights(model: nn.Module) -> None:
    """Variance-preserving matrices, embeddings of size 0.5, norms and biases that are not all the same."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    transposed = {id(module.weight) for module in model.modules() if type(module).__name__ == "Conv1D"}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            if parameter.dim() < 2:
                # The scale of a norm is called weight, everything else with one dimension is a bias.
                parameter.copy_(1 + 0.2 * noise if name.endswith("weight") else 0.1 * noise)
            elif id(parameter) in embeddings:
                parameter.copy_(0.5 * noise)
            else:
                inner = parameter.shape[0] if id(parameter) in transposed else parameter[0].numel()
                if parameter.dim() == 3 and "experts" in name:
                    inner = parameter.shape[-1]
                parameter.copy_(1.2 * inner**-0.5 * noise)


def _tokens(*shape: int) -> Tensor:
    return torch.randint(5, VOCABULARY, shape)


def _padding() -> Tensor:
    """1 where there is a token: the second sequence is shorter."""
    there = torch.ones(BATCH, LENGTH, dtype=torch.long)
    there[1, LENGTH - 4 :] = 0
    return there


def _of_transformers(model: Any, **inputs: Tensor) -> Network:
    return Network(model, inputs, lambda **given: model(**given).loss)


def _of_tokens(model: nn.Module, **mask: Tensor) -> Network:
    def forward(tokens: Tensor, **given: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens, **given).flatten(0, 1), tokens.flatten())

    return Network(model, {"tokens": _tokens(BATCH, LENGTH), **mask}, forward)


_DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "use_cache": False, "pad_token_id": 0,
}  # fmt: skip


def llama() -> Network:
    """Rotary positions, grouped keys, attention spelled out."""
    import transformers

    config = transformers.LlamaConfig(**_DECODER, num_hidden_layers=4, attn_implementation="eager")
    tokens = _tokens(BATCH, LENGTH)
    return _of_transformers(transformers.LlamaForCausalLM(config), input_ids=tokens, labels=tokens)


def mixtral() -> Network:
    """A mixture of four experts, two for each token; fused attention."""
    import transformers

    config = transformers.MixtralConfig(
        **_DECODER, num_hidden_layers=3, num_local_experts=4, num_experts_per_tok=2, attn_implementation="sdpa",
        experts_implementation="eager",
    )  # fmt: skip
    tokens = _tokens(BATCH, LENGTH)
    return _of_transformers(transformers.MixtralForCausalLM(config), input_ids=tokens, labels=tokens)


def gpt2() -> Network:
    """Learned positions, weights that are stored transposed, attention spelled out."""
    import transformers

    config = transformers.GPT2Config(
        n_embd=64, n_layer=4, n_head=4, n_positions=32, vocab_size=VOCABULARY, use_cache=False, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip
    tokens = _tokens(BATCH, LENGTH)
    return _of_transformers(transformers.GPT2LMHeadModel(config), input_ids=tokens, labels=tokens)


def bert() -> Network:
    """Both directions, a padding mask, fused attention, norms after the residual."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )  # fmt: skip
    tokens = _tokens(BATCH, LENGTH)
    model = transformers.BertForMaskedLM(config)
    return _of_transformers(model, input_ids=tokens, attention_mask=_padding(), labels=tokens)


def t5() -> Network:
    """Encoder and decoder, relative positions, no scale in the attention."""
    import transformers

    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=48, d_kv=12, num_heads=4, d_ff=96, num_layers=3, num_decoder_layers=3,
        dropout_rate=0.0, use_cache=False, decoder_start_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    labels = _tokens(BATCH, LENGTH - 2).flip(1).contiguous()
    return _of_transformers(model, input_ids=_tokens(BATCH, LENGTH), attention_mask=_padding(), labels=labels)


def whisper() -> Network:
    """Convolutions over a spectrum, encoder and decoder, fused attention."""
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=16, d_model=48, encoder_layers=3, decoder_layers=3,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
        max_source_positions=20, max_target_positions=24, dropout=0.0, use_cache=False, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    return _of_transformers(model, input_features=torch.randn(BATCH, 16, 40), labels=_tokens(BATCH, LENGTH))


def swin() -> Network:
    """Attention in windows, every other layer shifted and masked, two resolutions of an image."""
    import transformers

    config = transformers.SwinConfig(
        image_size=32, patch_size=2, num_channels=3, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4,
        mlp_ratio=2.0, drop_path_rate=0.0, num_labels=10, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.SwinForImageClassification(config)
    return _of_transformers(model, pixel_values=torch.randn(2, 3, 32, 32), labels=torch.tensor([3, 7]))


class Residual(nn.Module):
    """Two convolutions with batch norm around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(inner)))


class ConvolutionalNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.blocks = nn.ModuleList(Residual(24) for _ in range(4))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(x).flatten(1))


def resnet() -> Network:
    """Convolutions, batch norm with the batch's own statistics, residuals."""
    model, labels = ConvolutionalNet(), torch.arange(8)
    return Network(model, {"x": torch.randn(8, 3, 12, 12)}, lambda x: F.cross_entropy(model(x), labels))


class Masking(nn.Module):
    """Zero where there is no token."""

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        return x.masked_fill(~there[:, :, None], 0.0)


class RecurrentNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 32)
        self.gru = nn.GRU(32, 24, batch_first=True, bidirectional=True)
        self.masking = Masking()
        self.project = nn.Linear(48, 48)
        self.act = nn.LeakyReLU(0.01)
        self.lstm = nn.LSTM(48, 48, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(48)
        self.mix = nn.Linear(48, 48)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
        x, _ = self.gru(self.tokens(tokens))
        x = self.act(self.project(self.masking(x, there)))
        x, _ = self.lstm(x)
        return self.head(torch.tanh(self.mix(self.norm(x))))


def recurrent() -> Network:
    """GRU in both directions, padding mask, two layers of LSTM."""
    return _of_tokens(RecurrentNet(), there=_padding().bool())


class EncoderNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 48)
        layer = nn.TransformerEncoderLayer(48, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, nn.LayerNorm(48), enable_nested_tensor=False)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, tokens: Tensor, missing: Tensor) -> Tensor:
        return self.head(self.encoder(self.tokens(tokens), src_key_padding_mask=missing))


def encoder() -> Network:
    """`torch.nn.TransformerEncoder` with a key padding mask."""
    return _of_tokens(EncoderNet(), missing=_padding() == 0)


NETWORKS: dict[str, Callable[[], Network]] = {
    build.__name__: build for build in (llama, mixtral, gpt2, bert, t5, whisper, swin, resnet, recurrent, encoder)
}
