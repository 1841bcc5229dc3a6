"""More language models: LoRA of PEFT, torch's own encoder, Mamba, Megatron-Core."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any

import torch
from package_language import Weights, llama_golden
from package_pairs import (
    CLASSES,
    DEPTH,
    FLOAT32,
    HEADS,
    HIDDEN,
    LENGTH,
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


# ------------------------------------------------------------------------------------------------------------- peft
def _lora(golden: nn.Module) -> Program:
    import copy

    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"], lora_dropout=0.0)
    model = get_peft_model(copy.deepcopy(golden), settings)
    random = torch.Generator().manual_seed(3)
    weights = golden.state_dict()
    with torch.no_grad():
        for name, module in model.named_modules():
            if hasattr(module, "lora_A") and module.lora_A:
                for part in (module.lora_A["default"], module.lora_B["default"]):
                    part.weight.copy_(0.1 * torch.randn(part.weight.shape, generator=random))
                # The golden model has the merged weight, and the base layer what is left of it.
                plain = name.removeprefix("base_model.model.")
                module.base_layer.weight.copy_(weights[f"{plain}.weight"] - module.get_delta_weight("default"))
    return Program(model.train(), lambda model: model(token_ids()).logits)


def _lora_layer(model: nn.Module) -> Any:
    return model.base_model.model.model.layers[1]


PEFT = Pair(
    "peft-lora",
    llama_golden,
    _lora,
    {
        "scaling": Fault(
            r"layers\.1\.self_attn\.q_proj",
            lambda model: _lora_layer(model).self_attn.q_proj.scaling.update(default=4.0),
        ),
        "adapter off": Fault(
            r"layers\.1\.mlp\.up_proj", lambda model: _lora_layer(model).mlp.up_proj.scaling.update(default=0.0)
        ),
        "rolled adapter": Fault(
            r"layers\.1\.self_attn\.v_proj",
            lambda model: roll(_lora_layer(model).self_attn.v_proj.lora_B["default"].weight),
        ),
        "epsilon": Fault(
            r"layers\.1\.post_attention_layernorm",
            lambda model: setattr(_lora_layer(model).post_attention_layernorm, "variance_epsilon", 3e-2),
        ),
    },
    trains=False,
    types=(FLOAT32,),
    about="A linear layer is wrapped: base layer and two factors add up to the merged weight.",
)


# ---------------------------------------------------------------------------------------------- torch.nn against BERT
class Encoder(nn.Module):
    """BERT out of torch's own transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.kinds = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids to logits."""
        value = self.words(ids) + self.kinds(torch.zeros_like(ids)) + self.places(torch.arange(ids.shape[1])[None])
        return self.head(self.encoder(self.norm(value)))


def _bert_golden() -> Program:
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS,
        intermediate_size=HIDDEN, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=CLASSES,
    )  # fmt: skip
    model = randomise(transformers.BertForTokenClassification(config)).train()
    return Program(model, lambda model: model(token_ids()).logits)


def _encoder(golden: nn.Module) -> Program:
    theirs = golden.state_dict()
    found: Weights = {
        f"{mine}.weight": theirs[f"bert.embeddings.{its}_embeddings.weight"]
        for mine, its in (("words", "word"), ("places", "position"), ("kinds", "token_type"))
    }
    names = {"norm": "bert.embeddings.LayerNorm", "head": "classifier"}
    for layer in range(DEPTH):
        mine, its = f"encoder.layers.{layer}", f"bert.encoder.layer.{layer}"
        names |= {
            f"{mine}.self_attn.out_proj": f"{its}.attention.output.dense", f"{mine}.norm2": f"{its}.output.LayerNorm",
            f"{mine}.norm1": f"{its}.attention.output.LayerNorm", f"{mine}.linear1": f"{its}.intermediate.dense",
            f"{mine}.linear2": f"{its}.output.dense",
        }  # fmt: skip
        for kind in ("weight", "bias"):
            parts = [theirs[f"{its}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            found[f"{mine}.self_attn.in_proj_{kind}"] = torch.cat(parts)
    found |= {f"{mine}.{kind}": theirs[f"{its}.{kind}"] for mine, its in names.items() for kind in ("weight", "bias")}
    model = Encoder()
    model.load_state_dict(found)
    return Program(model.train(), lambda model: model(token_ids()))


def _encoder_layer(model: nn.Module) -> Any:
    return model.encoder.layers[1]


TORCH_ENCODER = Pair(
    "torch-encoder",
    _bert_golden,
    _encoder,
    {
        "epsilon": Fault(
            r"layers\.1\.norm1|layer\.1\.attention\.output(\.LayerNorm)?\b",
            lambda model: setattr(_encoder_layer(model).norm1, "eps", 3e-2),
        ),
        "activation": Fault(
            r"layers\.1\b(?!\.(self_attn|norm1))|layer\.1\.(intermediate|output)",
            lambda model: setattr(_encoder_layer(model), "activation", nn.functional.silu),
        ),
        "missing bias": Fault(
            r"layers\.1\.self_attn|layer\.1\.attention",
            lambda model: _encoder_layer(model).self_attn.out_proj.bias.data.zero_(),
        ),
        "rolled weight": Fault(
            r"layers\.1\.linear2|layer\.1\.output(\.dense)?\b", lambda model: roll(_encoder_layer(model).linear2.weight)
        ),
    },
    about="nn.TransformerEncoder: activation and sums are functions of the layer, not modules.",
)


# ------------------------------------------------------------------------------------------------------------ mambapy
def _mamba_golden() -> Program:
    import transformers

    config = transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, state_size=8, expand=2, conv_kernel=4,
        time_step_rank=4, use_cache=False, tie_word_embeddings=False, residual_in_fp32=False, use_mambapy=False,
        use_bias=False, use_conv_bias=True,
    )  # fmt: skip
    model = randomise(transformers.MambaForCausalLM(config)).train()
    return Program(model, lambda model: model(token_ids(), use_cache=False).logits)


class MambaModel(nn.Module):
    """The layers of mambapy with embedding and head; its own model of this kind asks for CUDA kernels."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from mambapy.mamba import Mamba, RMSNorm

        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.mamba = Mamba(config)
        self.norm_f = RMSNorm(WIDTH, config.rms_norm_eps, config.mup)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids to logits."""
        return self.lm_head(self.norm_f(self.mamba(self.embedding(ids))))


def _mambapy(golden: nn.Module) -> Program:
    from mambapy.mamba import MambaConfig

    config = MambaConfig(
        d_model=WIDTH, n_layers=2, dt_rank=4, d_state=8, expand_factor=2, d_conv=4,
        rms_norm_eps=golden.config.layer_norm_epsilon, use_cuda=False, pscan=True,
    )  # fmt: skip
    model = MambaModel(config)
    found = {}
    for name, value in golden.state_dict().items():
        mine = name.removeprefix("backbone.").replace("embeddings.", "embedding.")
        found[f"mamba.{mine}" if mine.startswith("layers.") else mine] = value
    model.load_state_dict(found)
    return Program(model.train(), lambda model: model(token_ids()))


def _mamba_mixer(model: nn.Module) -> Any:
    return model.mamba.layers[1].mixer


MAMBA = Pair(
    "mambapy",
    _mamba_golden,
    _mambapy,
    {
        "epsilon": Fault(r"layers\.1\.norm", lambda model: setattr(model.mamba.layers[1].norm, "eps", 3e-2)),
        "rolled weight": Fault(
            r"layers\.1\.mixer\.x_proj|layers\.1\.mixer", lambda model: roll(_mamba_mixer(model).x_proj.weight)
        ),
        "missing bias": Fault(
            r"layers\.1\.mixer\.conv1d|layers\.1\.mixer", lambda model: _mamba_mixer(model).conv1d.bias.data.zero_()
        ),
        "skip": Fault(r"layers\.1\.mixer", lambda model: _mamba_mixer(model).D.data.zero_()),
    },
    types=(FLOAT32,),
    about="A parallel scan against a loop over positions: hundreds of calls on one side only.",
)


# ------------------------------------------------------------------------------------------------------- megatron-core
def _gpt2_golden() -> Program:
    import transformers

    config = transformers.GPT2Config(
        n_embd=WIDTH, n_layer=DEPTH, n_head=HEADS, n_positions=LENGTH, n_inner=HIDDEN, vocab_size=VOCABULARY,
        use_cache=False, bos_token_id=1, eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        activation_function="gelu", tie_word_embeddings=False,
    )  # fmt: skip
    model = randomise(transformers.GPT2LMHeadModel(config)).train()
    return Program(model, lambda model: model(token_ids()).logits)


def _start_megatron() -> None:
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    if not dist.is_initialized():
        rendezvous = os.path.join(tempfile.mkdtemp(), "rendezvous")
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        parallel_state._GLOBAL_MEMORY_BUFFER = _memory_on_cpu()
        random._CUDA_RNG_STATE_TRACKER = _states_on_cpu()
        random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def _states_on_cpu() -> Any:
    """States of the random generators, which Megatron has of CUDA only; nothing is random here."""
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    class StatesOnCpu(CudaRNGStatesTracker):
        def fork(self, *_: Any) -> Any:
            return contextlib.nullcontext()

    return StatesOnCpu()


def _memory_on_cpu() -> Any:
    """Megatron's buffers, which it has on the current CUDA device only."""
    from megatron.core.utils import GlobalMemoryBuffer

    class MemoryOnCpu(GlobalMemoryBuffer):
        def get_tensor(self, tensor_shape: Any, dtype: torch.dtype, name: str, *_: Any) -> torch.Tensor:
            return torch.empty(tuple(tensor_shape), dtype=dtype)

    return MemoryOnCpu()


def _megatron(golden: nn.Module) -> Program:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    _start_megatron()
    config = TransformerConfig(
        num_layers=DEPTH, hidden_size=WIDTH, num_attention_heads=HEADS, ffn_hidden_size=HIDDEN,
        use_cpu_initialization=True,
        hidden_dropout=0.0, attention_dropout=0.0, layernorm_epsilon=golden.config.layer_norm_epsilon,
        bias_activation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False, bias_dropout_fusion=False,
        gradient_accumulation_fusion=False, attention_softmax_in_fp32=False,
    )  # fmt: skip
    model = GPTModel(
        config, get_gpt_layer_local_spec(normalization="LayerNorm"), VOCABULARY, LENGTH,
        position_embedding_type="learned_absolute", share_embeddings_and_output_weights=False,
    )  # fmt: skip
    theirs = golden.state_dict()
    found = {
        "embedding.word_embeddings.weight": theirs["transformer.wte.weight"],
        "embedding.position_embeddings.weight": theirs["transformer.wpe.weight"],
        "output_layer.weight": theirs["lm_head.weight"],
        **{f"decoder.final_layernorm.{kind}": theirs[f"transformer.ln_f.{kind}"] for kind in ("weight", "bias")},
    }
    for layer in range(DEPTH):
        mine, its = f"decoder.layers.{layer}", f"transformer.h.{layer}"
        for kind in ("weight", "bias"):
            found[f"{mine}.input_layernorm.{kind}"] = theirs[f"{its}.ln_1.{kind}"]
            found[f"{mine}.pre_mlp_layernorm.{kind}"] = theirs[f"{its}.ln_2.{kind}"]
            for own, other in (
                ("self_attention.linear_proj", "attn.c_proj"), ("mlp.linear_fc1", "mlp.c_fc"),
                ("mlp.linear_fc2", "mlp.c_proj"),
            ):  # fmt: skip
                value = theirs[f"{its}.{other}.{kind}"]
                found[f"{mine}.{own}.{kind}"] = value.t() if kind == "weight" else value
            value = theirs[f"{its}.attn.c_attn.{kind}"]
            value = value.t() if kind == "weight" else value
            by_head = value.reshape(3, HEADS, WIDTH // HEADS, *value.shape[1:]).transpose(0, 1)
            found[f"{mine}.self_attention.linear_qkv.{kind}"] = by_head.reshape(value.shape)
    missing = model.load_state_dict(found, strict=False).missing_keys
    assert all(name.endswith("_extra_state") for name in missing), missing
    places = torch.arange(LENGTH)[None].expand(token_ids().shape[0], -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    return Program(model.train(), lambda model: model(token_ids(), places, mask))


def _megatron_layer(model: nn.Module) -> Any:
    return model.decoder.layers[1]


def _megatron_scale(model: nn.Module) -> None:
    _megatron_layer(model).self_attention.core_attention.softmax_scale = 0.5


MEGATRON = Pair(
    "megatron-gpt",
    _gpt2_golden,
    _megatron,
    {
        "epsilon": Fault(
            r"layers\.1\.pre_mlp_layernorm|h\.1\.ln_2",
            lambda model: setattr(_megatron_layer(model).pre_mlp_layernorm, "eps", 3e-2),
        ),
        "scale": Fault(r"layers\.1\.self_attention|h\.1\.attn", _megatron_scale),
        "activation": Fault(
            r"layers\.1\.mlp|h\.1\.mlp",
            lambda model: setattr(_megatron_layer(model).mlp, "activation_func", nn.functional.relu),
        ),
        "missing bias": Fault(
            r"layers\.1\.mlp|h\.1\.mlp", lambda model: _megatron_layer(model).mlp.linear_fc2.bias.data.zero_()
        ),
    },
    about="Sequence first; linear layers return their bias, which is added later; Conv1D has transposed weights.",
)

PAIRS = (PEFT, TORCH_ENCODER, MAMBA, MEGATRON)
