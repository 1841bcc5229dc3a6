"""A network in float8 by fake quantisation, compared with the same network in bfloat16."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from probe.compare.runner import summaries
from probe.compare.summary import Summary

WIDTH, LAYERS, TOKENS, FAULTY = 64, 8, 100, 5


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Casts are not watched in a process that has compiled something, as other tests of this process have."""
    frames = sys.modules.get("torch._dynamo")
    if frames is not None:
        frames.reset()


class Linear(nn.Linear):
    """A linear that casts its input and its weight to float8, and back; gradients pass straight through."""

    is_quantised = True

    def forward(self, x: Any) -> Any:
        weight = self.weight
        if self.is_quantised:
            x, weight = (each + (each.to(torch.float8_e4m3fn).to(each.dtype) - each).detach() for each in (x, weight))
        return functional.linear(x, weight)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Any) -> Any:
        heads = (each(x).unflatten(-1, (4, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    _scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(functional.silu(self.gate(x)) * self.up(x)) * self._scale


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention, self.between, self.mlp = Norm(), Attention(), Norm(), Mlp()

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


class Network(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(TOKENS, WIDTH), Norm()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def dump(new_debugger: Any, path: Path, level: str, quantised: bool, fault: str = "", layers: int = LAYERS) -> None:
    torch.manual_seed(0)
    model = Network(layers).to(torch.bfloat16)
    for module in model.modules():
        if isinstance(module, Linear):
            module.is_quantised = quantised
    if fault == "transposed":
        # No parameter of the record differs: the forward takes it in another way.
        linear = model.layers[min(FAULTY, layers - 1)].attention.o
        linear.forward = lambda x: Linear.forward(_Turned(linear), x)
    if fault == "scaled":
        # The environment has public attributes alone.
        mlp = model.layers[min(FAULTY, layers - 1)].mlp
        mlp._scale = 2.0
    ids = torch.randint(0, TOKENS, (4, 32), generator=torch.Generator().manual_seed(1))
    debugger = new_debugger(level=level, dump_path=str(path))
    debugger.start(model)
    functional.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten()).backward()
    debugger.stop()
    debugger.step()


class _Turned:
    """A linear with its weight transposed."""

    def __init__(self, linear: Any) -> None:
        self.weight, self.is_quantised = linear.weight.t(), linear.is_quantised


def compared(target: Path, golden: Path) -> Summary:
    (found,) = summaries(str(target), str(golden))
    return found


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_right_run_is_no_divergence_and_a_fault_is_not_silent(new_debugger: Any, tmp_path: Path, level: str) -> None:
    dump(new_debugger, tmp_path / "golden", level, quantised=False)
    for fault in ("", "transposed", "scaled"):
        dump(new_debugger, tmp_path / f"target{fault}", level, quantised=True, fault=fault)
    right = compared(tmp_path / "target", tmp_path / "golden")
    assert right.answer == "none", right.why
    for fault in ("transposed", "scaled"):
        found = compared(tmp_path / f"target{fault}", tmp_path / "golden")
        assert found.answer != "none", (fault, found.why)


def test_a_fault_in_one_of_few_layers_is_not_silent(new_debugger: Any, tmp_path: Path) -> None:
    """Fewer than five layers tell nothing of what is usual, and rounding to float8 alone explains much."""
    dump(new_debugger, tmp_path / "golden", "L0", quantised=False, layers=3)
    dump(new_debugger, tmp_path / "target", "L0", quantised=True, fault="scaled", layers=3)
    found = compared(tmp_path / "target", tmp_path / "golden")
    assert found.answer == "cannot_tell" and "cannot be judged" in found.why, found.why
