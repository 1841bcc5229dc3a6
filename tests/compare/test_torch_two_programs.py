"""Two programs for one network: a decoder with batches, and an engine with flat tokens and a residual apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import one_step
import pytest

from probe.compare.output.summary import summarise
from probe.compare.result import ComparisonResult
from probe.compare.runner import compare

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

WIDTH, INNER, TOKENS, LAYERS = 32, 48, 29, 3


class Norm(nn.Module):
    def __init__(self, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.epsilon = epsilon

    def forward(self, x: Any) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


class GatedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, INNER, bias=False)
        self.up_proj = nn.Linear(WIDTH, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix_norm, self.mlp_norm = Norm(), Norm()
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = GatedMlp()

    def forward(self, x: Any) -> Any:
        x = x + self.mix(self.mix_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class FusedNorm(Norm):
    def forward(self, x: Any, residual: Any = None) -> Any:
        x = x if residual is None else x + residual
        return super().forward(x), x


class FusedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(functional.silu(gate) * up)


class EngineLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix_norm, self.mlp_norm = FusedNorm(), FusedNorm()
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = FusedMlp()
        self.drops_residual = False

    def forward(self, x: Any, residual: Any) -> Any:
        x, residual = self.mix_norm(x, residual)
        x, residual = self.mlp_norm(self.mix(x), None if self.drops_residual else residual)
        return self.mlp(x), residual


class Engine(nn.Module):
    """The layers have the names of the decoder; it works on `[batch * length, width]`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(EngineLayer() for _ in range(LAYERS))
        self.norm = FusedNorm()
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, ids: Any) -> Any:
        x, residual = self.embed(ids.reshape(-1)), None
        for layer in self.layers:
            x, residual = layer(x, residual)
        return self.head(self.norm(x, residual)[0])


def _decoder() -> Decoder:
    torch.manual_seed(3)
    decoder = Decoder()
    for name, value in decoder.state_dict().items():
        noise = torch.randn_like(value)
        value.copy_(1 + 0.2 * noise if "norm" in name else noise / WIDTH**0.5)
    return decoder


def _engine(weights: dict[str, Any]) -> Engine:
    found = {}
    for name, value in weights.items():
        if "gate_proj" in name:
            both = torch.cat([value, weights[name.replace("gate", "up")]])
            found[name.replace("gate_proj", "gate_up_proj")] = both
        elif "up_proj" not in name:
            found[name] = value
    engine = Engine()
    engine.load_state_dict(found)
    return engine


def _dump(model: Any, path: Path, level: str) -> None:
    ids = torch.randint(0, TOKENS, (3, 5), generator=torch.Generator().manual_seed(1))
    with one_step.collected(model, path, level), torch.no_grad():
        model(ids)


def _compared(path: Path, level: str, plant: Callable[[Engine], None], dtype: str = "float32") -> ComparisonResult:
    engine = _engine(_decoder().state_dict())
    plant(engine)
    _dump(engine.to(getattr(torch, dtype)), path / "target", level)
    _dump(_decoder().to(getattr(torch, dtype)), path / "golden", level)
    (result,) = compare(str(path / "target"), str(path / "golden"))
    return result


def _epsilon(engine: Engine) -> None:
    engine.layers[1].mlp_norm.epsilon = 1e-2


def _no_residual(engine: Engine) -> None:
    engine.layers[1].drops_residual = True


def _gate_for_up(engine: Engine) -> None:
    weight = engine.layers[1].mlp.gate_up_proj.weight.data
    weight.copy_(torch.cat(weight.chunk(2)[::-1]))


def _weight(engine: Engine) -> None:
    engine.layers[1].mix.weight.data.mul_(1.001)


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_an_engine_with_flat_tokens_and_a_residual_apart_does_not_diverge(tmp_path: Path, level: str) -> None:
    result = _compared(tmp_path, level, lambda engine: None)
    assert result.divergence is None and not result.undecided
    assert result.coverage.is_enough


@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize(
    ("plant", "where"),
    [
        (_epsilon, r"layers\.1\.mlp_norm"),
        (_no_residual, r"layers\.1\."),
        (_gate_for_up, r"layers\.1\.mlp"),
        (_weight, r"layers\.1\.mix"),
    ],
)
def test_a_fault_in_an_engine_of_the_same_names_is_named_in_its_layer(
    tmp_path: Path, level: str, plant: Callable[[Engine], None], where: str
) -> None:
    result = _compared(tmp_path, level, plant)
    assert result.divergence is not None
    first = result.divergence.first
    assert re.search(where, f"{first.record} {first.module}")


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_in_bfloat16_what_the_engine_alone_has_shows_beside_what_values_differ_by(tmp_path: Path, level: str) -> None:
    found = summarise(_compared(tmp_path, level, lambda engine: None, "bfloat16"))
    assert found.answer == "none", found.why
    shown = [each.shows_from for each in found.without_effect if "only the target has" in each.reason]
    assert len(shown) == LAYERS and all(each is not None and 0.0 < each < 0.03 for each in shown)


@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize("plant", [_no_residual, _gate_for_up])
def test_in_bfloat16_a_fault_in_the_engine_is_not_called_right(
    tmp_path: Path, level: str, plant: Callable[[Engine], None]
) -> None:
    result = _compared(tmp_path, level, plant, "bfloat16")
    assert summarise(result).answer != "none"
    if result.divergence is not None:
        assert "layers.1." in result.divergence.first.module


def test_a_weight_that_the_engine_has_emptied_or_padded_is_not_compared(tmp_path: Path) -> None:
    def changed(engine: Engine) -> None:
        padding = torch.zeros(3, WIDTH)
        engine.embed.weight = nn.Parameter(torch.cat([engine.embed.weight.data, padding]))
        for layer in engine.layers:
            weight, layer.mix.weight = layer.mix.weight.data, nn.Parameter(torch.empty(0))
            layer.mix.forward = lambda x, weight=weight: functional.linear(x, weight)

    assert _compared(tmp_path, "L0", changed).divergence is None
