"""Steps of a small Llama, dumped with their values: right ones, and such with one thing that is wrong.

Needs PyTorch and Transformers. Arguments: a folder, and the names of the dumps in it, each a dtype and what is wrong (a
key of `WRONG`): ``float32_weight``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from planted_kernels import planted
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe.pytorch import PrecisionDebugger


def weight(model: Any) -> None:
    """Another weight in the middle."""
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.5)


def argument(model: Any) -> None:
    """Another eps of a norm."""
    model.model.norm.eps = 0.5


def upstream(model: Any) -> None:
    """Hidden states that code which is not recorded changes on their way to a layer."""

    def change(module: nn.Module, given: tuple[Any, ...]) -> None:
        # numpy has no bfloat16, and calls of torch would be recorded: the sign bit of every third number.
        wide = given[0].element_size()
        bits = given[0].data.view(-1).view(torch.int32 if wide == 4 else torch.int16).numpy()
        bits[::3] ^= np.iinfo(bits.dtype).min

    model.model.layers[1].mlp.gate_proj.register_forward_pre_hook(change)


def draws(model: Any) -> None:
    """A dropout whose numbers depend on the dtype."""

    def drop(module: nn.Module, given: tuple[Any, ...], returned: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(returned.element_size())
        return F.dropout(returned, 0.5)

    model.model.embed_tokens.register_forward_hook(drop)


def kernel(result: torch.Tensor) -> torch.Tensor:
    """The result of a wrong kernel of silu."""
    return result * 1.5


WRONG: dict[str, Callable[[Any], None]] = {
    "nothing": lambda model: None,
    "weight": weight,
    "argument": argument,
    "upstream": upstream,
    "draws": draws,
    "kernel": lambda model: None,
}


class Norm(nn.Module):
    """A norm that is one function, whose eps is an argument of the call."""

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.weight, self.eps = like.weight, like.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, None, self.eps)


def dump(folder: Path, dtype: str, wrong: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, attn_implementation="eager", **sizes))
    model.model.norm = Norm(model.model.norm)
    WRONG[wrong](model)
    model.to(getattr(torch, dtype))
    tokens = torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(1))
    folder.mkdir()
    config = folder / "config.json"
    settings = {"task": "tensor", "level": "mix", "dump_path": str(folder), "step": [], "rank": []}
    config.write_text(json.dumps(settings))
    inside: Any = planted(F, "silu", kernel) if wrong == "kernel" else contextlib.nullcontext()
    with inside:
        PrecisionDebugger._instance = None
        debugger = PrecisionDebugger(str(config))
        debugger.start(model)
        model(tokens, labels=tokens).loss.backward()
        debugger.stop()
        debugger.step()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        dump(Path(sys.argv[1]) / name, *name.split("_"))
