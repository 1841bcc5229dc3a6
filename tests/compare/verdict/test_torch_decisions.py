"""Choices of a router in two runs: how many differ, and if the values among which it chose explain it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import probe
from probe.api.cli import main
from probe.api.pytorch import PrecisionDebugger

EXPERTS, TOKENS = 8, 64


class Router(nn.Module):
    noise: torch.Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, EXPERTS, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.gate(x).float()
        if self.noise is not None:
            logits = logits + self.noise
        weights, experts = torch.topk(logits.softmax(-1), 2)
        return weights.to(x.dtype), experts


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, experts = self.router(x)
        every = torch.stack([each(x) for each in self.experts], 1)
        taken = every.gather(1, experts[..., None].expand(-1, -1, x.shape[-1]))
        return x + (taken * weights[..., None]).sum(1)


class Loop(Mixture):
    """Experts that take their own tokens, one after the other."""

    sends_some_to_the_first = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, experts = self.router(x)
        if self.sends_some_to_the_first:
            experts = experts.clone()
            experts[:5] = 0
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, places = (experts == number).nonzero(as_tuple=True)
            y = y.index_add(0, tokens, expert(x[tokens]) * weights[tokens, places, None])
        return x + y


class OtherExperts(TorchDispatchMode):
    """A kernel of top-k that gives the first tokens of one layer other experts."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.topk.default and args[1] == 2:
            self.calls += 1
            if self.calls == 2:
                found[1][:5] = (found[1][:5] + 3) % EXPERTS
        return found


@contextmanager
def usual() -> Iterator[None]:
    yield


def collect(
    folder: Path,
    level: str = "mix",
    dtype: torch.dtype = torch.float32,
    change: Callable[[nn.Sequential], Any] = lambda model: None,
    kernel: Callable[[], Any] = usual,
    layer: Callable[[], Mixture] = Mixture,
    **settings: Any,
) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(*[layer() for _ in range(4)]).to(dtype)
    change(model)
    x = torch.randn(TOKENS, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    config = folder.with_suffix(".json")
    task = {"task": "statistics", "statistics": settings}
    config.write_text(json.dumps({**task, "dump_path": str(folder), "level": level, "rank": [], "step": []}))
    debugger = type("Debugger", (PrecisionDebugger,), {"_instance": None})(str(config))
    debugger.start(model)
    with kernel():
        model(x).square().mean().backward()
    debugger.stop()
    debugger.step()
    debugger.reset()
    return str(folder)


Compare = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    def compare(
        level: str = "mix",
        golden: dict[str, Any] | None = None,
        layer: Callable[[], Mixture] = Mixture,
        **target: Any,
    ) -> tuple[dict[str, Any], str]:
        other = collect(tmp_path / "golden", level, layer=layer, **golden or {})
        paths = [collect(tmp_path / "target", level, layer=layer, **target), other]
        capsys.readouterr()
        assert main(["compare", *paths, "-o", str(tmp_path / "out"), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert main(["compare", *paths, "-o", str(tmp_path / "out")]) == 0
        return found, capsys.readouterr().out

    return compare


def test_rounding_turns_choices_whose_margins_are_small(compared: Compare) -> None:
    found, said = compared(dtype=torch.bfloat16)

    turned = [each for each in found["decisions"] if each["differing"]]
    assert len(found["decisions"]) == 4 and turned, "each call once, and not its module again"
    assert all(each["is_explained"] and 0 < each["needed"] <= 1.3 * each["apart"] for each in turned)
    assert found["divergence"]["answer"] == "none"
    assert f"decisions: {sum(each['differing'] for each in turned)} of {4 * TOKENS} choices differ" in said
    assert "their inputs explain them" in said


def test_a_kernel_that_chooses_otherwise_is_named(compared: Compare) -> None:
    found, said = compared(dtype=torch.bfloat16, kernel=OtherExperts)

    assert found["divergence"]["first"]["record"] == "Torch.topk.1.forward"
    unexplained = [each for each in found["decisions"] if each["is_explained"] is False]
    assert [each["record"] for each in unexplained] == ["Torch.topk.1.forward"]
    assert unexplained[0]["needed"] > 1.3 * unexplained[0]["apart"]
    assert "not explained" in said and "they need inputs with a relative error of" in said


def test_of_the_same_inputs_other_choices_are_never_explained(compared: Compare) -> None:
    found, _ = compared("L0", kernel=OtherExperts)

    assert found["divergence"]["first"]["record"] == "Module.1.router.Router.forward.0"
    assert "5 other choices than the golden run; its inputs are identical" in found["divergence"]["first"]["reason"]
    first = next(each for each in found["decisions"] if each["differing"])
    assert (first["differing"], first["compared"], first["is_explained"]) == (5, TOKENS, False)


@contextmanager
def other_seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def test_choices_that_are_drawn_are_not_said_to_be_unexplained(compared: Compare) -> None:
    class Sampler(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.multinomial(x.float().softmax(-1), 1).to(x.dtype)

    def sampling(model: nn.Sequential) -> None:
        model.insert(0, Sampler())

    found, said = compared(change=sampling, kernel=other_seed, golden={"change": sampling})
    assert next(each["is_explained"] for each in found["decisions"] if each["differing"]) is None
    assert "not explained" not in said


def test_another_router_is_named_by_its_weight_and_its_choices_follow(compared: Compare) -> None:
    def change(model: nn.Sequential) -> None:
        with torch.no_grad():
            model[2].router.gate.weight[3] += 0.2

    found, _ = compared(change=change)

    assert found["divergence"]["first"]["cause"].startswith("parameter 2.router.gate.weight")
    assert [each["differing"] > 0 for each in found["decisions"]][:3] == [False, False, True]
    assert all(each["is_explained"] for each in found["decisions"] if each["differing"])


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_logits_that_one_run_alone_changes_are_named_and_not_excused_by_the_choices_behind_them(
    compared: Compare, level: str
) -> None:
    def change(model: nn.Sequential) -> None:
        model[1].router.noise = 0.03 * torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(2))

    found, _ = compared(level, change=change)

    assert any(each["differing"] for each in found["decisions"])
    assert found["divergence"]["first"]["record"] == "Tensor.__add__.1.forward"


def full(model: nn.Sequential) -> None:
    """The last tokens are sent to another expert, as where the first ones are full."""
    last = torch.arange(TOKENS - 8, TOKENS)
    model[1].router.register_forward_hook(lambda module, args, out: (out[0], out[1].index_fill(0, last, 7)))


def test_choices_that_are_changed_after_they_were_made_are_a_divergence(compared: Compare) -> None:
    found, _ = compared(change=full)

    first = found["divergence"]["first"]
    assert first["record"] == "Tensor.index_fill.0.forward"
    assert "one run has changed them after they were made" in first["reason"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_experts_that_take_more_tokens_because_of_choices_that_rounding_turned_are_not_judged(
    compared: Compare, level: str
) -> None:
    found, _ = compared(level, layer=Loop, dtype=torch.bfloat16)

    assert any(each["differing"] for each in found["decisions"])
    assert found["divergence"]["answer"] == "none"


def test_choices_that_are_changed_in_place_are_named_where_one_run_changes_them(compared: Compare) -> None:
    def change(model: nn.Sequential) -> None:
        model[2].sends_some_to_the_first = True

    found, _ = compared("L1", layer=Loop, change=change)

    first = found["divergence"]["first"]
    assert (first["record"], first["cause"]) == ("Tensor.__setitem__.0.forward", "")
    assert "one run has changed them after they were made" in first["reason"]


def test_where_the_choices_differ_as_well_it_cannot_be_told(compared: Compare) -> None:
    found, _ = compared(change=full, dtype=torch.bfloat16)

    assert found["divergence"]["answer"] == "cannot_tell"
    assert "one run has changed them after they were made" in found["divergence"]["why"]


def test_without_margins_it_is_said_that_nobody_can_tell(compared: Compare) -> None:
    found, said = compared("L0", dtype=torch.bfloat16)

    assert {each["is_explained"] for each in found["decisions"] if each["differing"]} == {None}
    # Experts that have other tokens have other gradients, by code of their module that is not recorded.
    assert found["divergence"]["answer"] == "none"
    assert "cannot be told whether the values explain the choices" in said and "--level mix" in said


def test_choices_are_recorded_beside_the_files_of_msprobe(tmp_path: Path) -> None:
    with_choices = probe.read(collect(tmp_path / "with"))
    without = probe.read(collect(tmp_path / "without", sketch=False))
    assert isinstance(with_choices, probe.Dump) and isinstance(without, probe.Dump)
    assert with_choices.sketches is not None and without.sketches is None
    found = with_choices.sketches.choices("Torch.topk.0.forward.output.1")
    assert found is not None and found.indices.shape == (TOKENS, 2) and found.margins is not None
    data = [json.loads(Path(dump.path).read_text())["data"] for dump in (with_choices, without)]
    assert data[0] == data[1] and "choices" not in json.dumps(data)
