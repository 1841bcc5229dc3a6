"""vLLM's engine on a CPU against Transformers: the prefill of a batch of prompts against one forward pass."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from package_language import causal
from package_pairs import FLOAT32, HEADS, LENGTH, Fault, Pair, Program, token_ids
from torch import nn

_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
_engine: list[Any] = []
_undo: list[Callable[[], None]] = []


def _golden() -> Program:
    # The engine's attention takes heads of 32 elements and more.
    model = causal("Llama", num_attention_heads=HEADS // 2, num_key_value_heads=1, bos_token_id=1, eos_token_id=2)
    return Program(model, lambda model: model(token_ids()).logits[:, -1])


def _vllm(golden: nn.Module) -> Program:
    """The engine, which is started once; what a fault has changed is set back."""
    if not _engine:
        os.environ.update(_SETTINGS)
        from vllm import LLM

        folder = tempfile.mkdtemp()
        golden.save_pretrained(folder)
        _engine.append(
            LLM(folder, skip_tokenizer_init=True, enforce_eager=True, dtype="float32", max_model_len=32, max_num_seqs=8,
                enable_prefix_caching=False)
        )  # fmt: skip
    while _undo:
        _undo.pop()()
    models: list[nn.Module] = []
    _engine[0].apply_model(models.append)
    return Program(models[0], _prefill)


def _prefill(model: nn.Module) -> torch.Tensor:
    """Logits of the token after each prompt."""
    from vllm import SamplingParams

    seen = []
    own = type(model).compute_logits

    def compute_logits(*args: Any, **kwargs: Any) -> Any:
        seen.append(own(model, *args, **kwargs))
        return seen[-1]

    model.compute_logits = compute_logits
    prompts = [{"prompt_token_ids": ids} for ids in token_ids().tolist()]
    settings = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    _engine[0].generate(prompts, settings, use_tqdm=False)
    del model.compute_logits
    return torch.cat(seen)[: len(prompts)].clone()


def _set(owner: Any, name: str, value: Any) -> None:
    before = getattr(owner, name)
    _undo.append(lambda: setattr(owner, name, before))
    setattr(owner, name, value)


def _rotary(model: nn.Module) -> None:
    modules = {id(layer.self_attn.rotary_emb): layer.self_attn.rotary_emb for layer in model.model.layers}
    for module in modules.values():
        size = module.cos_sin_cache.shape[-1]
        rates = 500.0 ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(len(module.cos_sin_cache)).float(), rates)
        _set(module, "cos_sin_cache", torch.cat([angles.cos(), angles.sin()], -1))


def _scale(model: nn.Module) -> None:
    attention = model.model.layers[1].self_attn.attn
    changed = copy.copy(attention.impl)
    changed.scale = 4 * changed.scale
    _set(attention, "impl", changed)


class _Relu(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """ReLU in place of SiLU of the gate."""
        gate, up = value.chunk(2, -1)
        return gate.relu() * up


VLLM = Pair(
    "vllm-llama",
    _golden,
    _vllm,
    {
        "epsilon": Fault(
            r"layers\.1\.post_attention_layernorm",
            lambda model: _set(model.model.layers[1].post_attention_layernorm, "variance_epsilon", 3e-2),
        ),
        "scale": Fault(r"layers\.1\.self_attn", _scale),
        "rotary base": Fault(r"layers\.0\.self_attn|rotary", _rotary),
        "activation": Fault(r"layers\.1\.mlp", lambda model: _set(model.model.layers[1].mlp, "act_fn", _Relu())),
    },
    trains=False,
    types=(FLOAT32,),
    environment="engine",
    about=f"Tokens are flat, [{LENGTH} * batch, width]; projections are fused; layers return hidden and residual.",
)

PAIRS = (VLLM,)
