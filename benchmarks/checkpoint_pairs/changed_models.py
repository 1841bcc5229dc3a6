"""Small models of Transformers as they are initialised, each beside a copy of it that was changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

State = dict[str, Any]
_SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 160, "pad_token_id": 0,
}  # fmt: skip
_MODELS: dict[str, dict[str, Any]] = {
    "Llama": {}, "Qwen2": {}, "Mistral": {}, "Gemma": {"head_dim": 16}, "Phi3": {}, "Phi": {}, "StableLm": {},
    "GPTNeoX": {}, "OPT": {"ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 64},
    "GPT2": {"n_embd": 64, "n_layer": 3, "n_head": 4}, "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {"num_experts": 4, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
}  # fmt: skip
"""The names of models for text in Transformers, with what their configurations have besides `_SIZES`."""


def _largest(state: State) -> str:
    """A matrix in the middle of the model."""
    inside = [name for name, each in state.items() if each.ndim == 2 and ".1." in name]
    return max(inside, key=lambda name: state[name].numel())


def _with(change: Callable[[Any], Any]) -> Callable[[State], State]:
    """A change of that matrix alone."""
    return lambda state: {**state, _largest(state): change(state[_largest(state)].clone())}


def _exchanged(state: State) -> State:
    other = _largest(state).replace(".1.", ".2.")
    return {**state, _largest(state): state[other], other: state[_largest(state)]}


def _nan(matrix: Any) -> Any:
    matrix[3, 5] = float("nan")
    return matrix


def _trained(state: State) -> State:
    import torch

    return {name: each + 1e-3 * torch.randn_like(each) for name, each in state.items()}


CHANGES: dict[str, Callable[[State], State]] = {
    "identical": lambda state: state,
    "bfloat16": lambda state: {name: each.bfloat16() for name, each in state.items()},
    "float16": lambda state: {name: each.half() for name, each in state.items()},
    "float64": lambda state: {name: each.double() for name, each in state.items()},
    "trained": _trained,
    "rows permuted": _with(lambda matrix: matrix.roll(5, 0)),
    "a factor": _with(lambda matrix: matrix / 8),
    "exchanged": _exchanged,
    "zeroed": _with(lambda matrix: 0 * matrix),
    "NaN": _with(_nan),
    "renamed": lambda state: {f"wrapped.{name}": each for name, each in state.items()},
    "lost": lambda state: {name: each for name, each in state.items() if name != _largest(state)},
}


def changed_models() -> Iterator[tuple[str, Callable[[Path], tuple[str, str]]]]:
    """The name of each pair, and what writes it: a file, and a folder of shards."""
    import torch
    import transformers

    for family, more in _MODELS.items():
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**{**_SIZES, **more})
        names = (f"{family}{kind}" for kind in ("ForCausalLM", "LMHeadModel") if hasattr(transformers, family + kind))
        model = getattr(transformers, next(names))(config)
        for name, change in CHANGES.items():

            def write(folder: Path, model: Any = model, change: Callable[[State], State] = change) -> tuple[str, str]:
                model.save_pretrained(folder / "golden", max_shard_size="200KB")
                state = {name: each.detach() for name, each in model.state_dict().items()}
                torch.save(change(state), folder / "target.pt")
                return str(folder / "target.pt"), str(folder / "golden")

            yield f"{family}, {name}", write
