"""Casts to float8 dtypes inside of modules, in the environment file of a run."""

from __future__ import annotations

import json
import sys
from typing import Any, Callable

import pytest
import torch
from torch import nn

from probe.common.environment.environment_file import settings_at

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
STORED = torch.ones(5, 4).to(E4M3)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Casts are not watched in a process that has compiled something, as other tests of this process have."""
    frames = sys.modules.get("torch._dynamo")
    if frames is not None:
        frames.reset()


class Casting(nn.Module):
    def __init__(self, cast: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.cast = cast

    def forward(self, x: Any) -> Any:
        return self.inner(self.cast(x))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.to(E4M3).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


CASTS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "to": (lambda x: x.to(E4M3).to(x.dtype), ("float8_e4m3fn",)),
    "to by name": (lambda x: x.to(dtype=E5M2).float(), ("float8_e5m2",)),
    "to another tensor": (lambda x: x.to(torch.zeros(1).to(E5M2)).float(), ("float8_e5m2",)),
    "type": (lambda x: x.type(E4M3).float() + x.to(E5M2).float(), ("float8_e4m3fn", "float8_e5m2")),
    "a function of autograd": (Straight.apply, ("float8_e4m3fn",)),
    "no gradients": (torch.no_grad()(lambda x: x.to(E4M3).float()), ("float8_e4m3fn",)),
    "from float8 alone": (lambda x: x + STORED.to(x.dtype), ()),
    "other casts": (lambda x: x.to(torch.bfloat16).type(torch.float16).float(), ()),
}


def collect(debugger: Any, model: nn.Module) -> bytes:
    debugger.start(model)
    output = model(torch.linspace(-1, 1, 20).reshape(5, 4))
    output.sum().backward()
    debugger.stop()
    debugger.step()
    found: bytes = output.detach().numpy().tobytes()
    return found


def casts(runs: Any) -> dict[str, tuple[str, ...]]:
    (path,) = runs.path.glob("environment_*")
    found = settings_at(json.loads(path.read_text()), 0)
    return {name: module.casts for name, module in found.items() if module.casts}


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("name", CASTS)
def test_they_are_those_of_the_module_that_casts(runs: Any, name: str, level: str) -> None:
    cast, expected = CASTS[name]
    model = nn.Sequential(nn.Linear(4, 4), Casting(cast))
    plain = model(torch.linspace(-1, 1, 20).reshape(5, 4)).detach().numpy().tobytes()
    assert collect(runs.new(level=level), model) == plain
    assert casts(runs) == ({"Module.1.Casting": expected} if expected else {})


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_scaled_product_tells_what_it_takes(runs: Any, level: str) -> None:
    one = torch.ones(())
    left, right = torch.eye(16).to(E4M3), torch.eye(16).to(E4M3).t()

    def product(x: Any) -> Any:
        return x + torch._scaled_mm(left, right, one, one, out_dtype=torch.float32)[:5, :4]

    try:
        product(torch.zeros(5, 4))
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"no such product here: {error}")
    collect(runs.new(level=level), nn.Sequential(Casting(product)))
    assert casts(runs) == {"Module.0.Casting": ("float8_e4m3fn",)}


@pytest.mark.parametrize(("settings", "modes"), [({}, [1, 0, 0, 0]), ({"environment": False}, [0] * 4)])
def test_they_are_watched_in_the_first_step_of_the_models_alone(runs: Any, settings: Any, modes: list[int]) -> None:
    found: list[int] = []

    def cast(x: Any) -> Any:
        found.append(torch._C._len_torch_function_stack())
        return x.to(E4M3).float() if len(found) == 1 else x.to(E5M2).float()

    model, debugger = nn.Sequential(Casting(cast)), runs.new(level="L0", **settings)
    for _ in range(3):
        collect(debugger, model)
    model(torch.zeros(5, 4))
    assert found == modes
    assert settings or casts(runs) == {"Module.0.Casting": ("float8_e4m3fn",)}
