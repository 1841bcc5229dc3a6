"""Causes of divergences between runs of small programs: each fault is planted, and its cause is what is said."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from probe.common.dump.reading.dump import read
from probe.common.parallel.tasks import Where
from probe.compare.comparison import compared
from probe.compare.options import Comparison, Options
from probe.compare.runner import summaries
from probe.compare.summary import first_of
from probe.compare.verdict.cause import Causes
from probe.compare.verdict.findings import own_name
from probe.compare.verdict.settings import differences_of
from probe.compare.verdict.two_runs import TwoRuns
from probe.compare.verdict.value_causes import Place

WIDTH = 32
Change = Callable[[Any], Any]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH)), 1e-6

    def forward(self, x: Any) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate = Norm(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last, self.scale, self.unused = nn.LayerNorm(WIDTH), 0.125, 1

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return self.last(x + F.gelu(self.gate(y)) * self.up(y) * self.scale)


_USUAL = Block.forward


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.head = nn.Linear(WIDTH, WIDTH), Block(), nn.Linear(WIDTH, 8)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(self.first(x)))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), torch.arange(6) % 8)


@pytest.fixture(scope="module")
def unchanged() -> dict[str, str]:
    """The folders of runs of the network without a change, by their levels."""
    return {}


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, new_debugger: Any, unchanged: dict[str, str]) -> Any:
    """Collects the training of a changed network, some steps of it, and returns its folder."""

    def trained(
        name: str,
        change: Change | None,
        level: str,
        loss: Change,
        optimizer: Change | None = None,
        steps: int = 1,
        zeroes: bool = True,
    ) -> str:
        is_usual = change is None and optimizer is None and loss is loss_of and Block.forward is _USUAL
        if is_usual and steps == 1 and level in unchanged:
            return unchanged[level]
        folder = str(tmp_path_factory.mktemp(name))
        torch.manual_seed(0)
        model = Net()
        if change is not None:
            change(model)
        stepper = None if optimizer is None else optimizer(model.parameters())
        debugger = new_debugger(level=level, dump_path=folder)
        for step in range(steps):
            debugger.start(model)
            loss(model, 3 * torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(step))).backward()
            if stepper is not None:
                stepper.step()
            if zeroes:
                model.zero_grad()
            debugger.stop()
            debugger.step()
        if is_usual and steps == 1:
            unchanged[level] = folder
        return folder

    return trained


@pytest.fixture
def cause(run: Any) -> Any:
    """What is said of a changed run, compared with the one without the change."""

    def said(change: Change | None = None, level: str = "mix", loss: Change = loss_of) -> str:
        paths = run("target", change, level, loss), run("golden", None, level, loss_of)
        first = _first(*paths)
        return str(first.labelled_cause or first.cause)

    return said


@pytest.fixture
def cause_at(run: Any) -> Any:
    """The cause at a place that is given: a record of the target, and an item of it."""

    def said(change: Change, record: str, item: str) -> str:
        runs = runs_of(run("target", change, "mix", loss_of), run("golden", None, "mix", loss_of))
        call = runs.by_record.get(record) or runs.by_golden_record[record]
        row = next(row for row in call.rows if own_name(row) == item)
        return Causes(runs).of(Place(call, row, 1.0, 1e-6)).shown

    return said


def runs_of(target: str, golden: str) -> TwoRuns:
    dumps = (read(next(Path(path).glob("step0/*/dump.json"))) for path in (target, golden))
    runs = compared(Comparison(*dumps, Options())).seen.runs
    assert runs is not None
    return runs


def _first(target: str, golden: str) -> Any:
    found = first_of(summaries(target, golden, where=Where(1)))
    assert found is not None and found.divergence is not None
    return found.divergence.first


def forward(path: str, function: Change) -> Change:
    """A change that gives a module another forward."""

    def change(model: nn.Module) -> None:
        module = model.get_submodule(path)
        module.forward = types.MethodType(function, module)  # type: ignore[method-assign]

    return change


def attribute(path: str, name: str, value: Any) -> Change:
    return lambda model: setattr(model.get_submodule(path), name, value)


def weight(path: str, function: Change) -> Change:
    def change(model: nn.Module) -> None:
        parameter = model.get_parameter(path)
        parameter.data = function(parameter.data.clone())

    return change


SETTINGS = [
    ("mix", attribute("block.last", "eps", 1e-2), "argument eps = 0.01 (golden: 1e-05)"),
    ("L0", attribute("block.last", "eps", 1e-2), "argument eps = 0.01 (golden: 1e-05)"),
    ("mix", attribute("block.norm", "eps", 1e-2), "argument eps = 0.01 (golden: 1e-06)"),
    ("L0", attribute("block.norm", "eps", 1e-2), "argument eps = 0.01 (golden: 1e-06)"),
    ("mix", attribute("block", "scale", 1.0), "argument scale = 1.0 (golden: 0.125)"),
    ("L0", attribute("block", "scale", 1.0), "argument scale = 1.0 (golden: 0.125)"),
]


@pytest.mark.parametrize(("level", "change", "expected"), SETTINGS)
def test_setting_is_named_as_its_module_has_it(cause: Any, level: str, change: Change, expected: str) -> None:
    assert expected in cause(change, level)


class Scaled(nn.Module):
    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return x.mul(scale)


FORMS: list[tuple[Change, Change, list[str]]] = [
    (lambda x: F.gelu(x, approximate="none"), lambda x: F.gelu(x), []),
    (lambda x: F.softmax(x, -1), lambda x: F.softmax(x, dim=1), []),
    (lambda x: x + 1, lambda x: x + 1.0, []),
    (lambda x: torch.add(x, 2, alpha=1), lambda x: torch.add(x, 2), []),
    (lambda x: F.layer_norm(x, (WIDTH,), None), lambda x: F.layer_norm(x, (WIDTH,)), []),
    (lambda x: Scaled()(x, 0.5), lambda x: Scaled()(x, scale=0.5), []),
    (lambda x: torch.transpose(x, -2, -1), lambda x: torch.transpose(x, 0, 1), []),
    (lambda x: torch.zeros(2, device="cpu") + x[:2, :2], lambda x: torch.zeros(2) + x[:2, :2], []),
    (lambda x: x.view(WIDTH, 6), lambda x: x.view((WIDTH, 6)), []),
    (lambda x: F.gelu(x, approximate="tanh"), lambda x: F.gelu(x), ["argument approximate = tanh in the target only"]),
    (lambda x: F.softmax(x, 0), lambda x: F.softmax(x, dim=-1), ["argument dim = 0 (golden: -1)"]),
    (lambda x: F.layer_norm(x, (WIDTH,), eps=1e-3), lambda x: F.layer_norm(x, (WIDTH,)),
     ["argument eps = 0.001 in the target only"]),
    (lambda x: F.leaky_relu(x, 0.2), lambda x: F.leaky_relu(x, negative_slope=0.3),
     ["argument negative_slope = 0.2 (golden: 0.3)"]),
]  # fmt: skip


@pytest.mark.parametrize(("target", "golden", "expected"), FORMS)
def test_one_setting_in_two_forms_is_no_difference_and_another_one_is_said_by_its_name(
    run: Any, target: Change, golden: Change, expected: list[str]
) -> None:
    def beside(function: Change) -> Change:
        return forward("block.up", lambda self, x: F.linear(x, self.weight) + function(x).sum())

    runs = runs_of(*(run("run", beside(function), "mix", loss_of) for function in (target, golden)))
    # A backward has the settings of its forward.
    assert {each.sentence.shown for call in runs.calls for each in differences_of(runs, call)} == set(expected)


CALLS = [
    (lambda self, x: torch.roll(F.linear(x, self.weight, self.bias), 1, -1), "only the target calls Torch.roll.0"),
    (lambda self, x: F.linear(x, self.weight), "bias is in the golden run only"),
    (lambda self, x: F.linear(x, self.weight, self.bias) + self.bias, "only the target calls Tensor.__add__"),
    (lambda self, x: F.linear(x.bfloat16().float(), self.weight, self.bias), "forward to bfloat16"),
    (lambda self, x: F.linear(x.bfloat16(), self.weight.bfloat16()).float() + self.bias, "dtype bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "expected"), CALLS)
def test_calls_on_the_way_of_the_value_are_named(cause: Any, function: Change, expected: str) -> None:
    assert expected in cause(forward("block.up", function))


WEIGHTS = [
    (lambda w: w.T.contiguous(), "parameter block.up.weight has the same elements in another order"),
    (lambda w: w / 8, "parameter block.up.weight is 1/8 times that of the golden run"),
    (lambda w: 0 * w, "all elements of parameter block.up.weight are 0 in the target"),
]


@pytest.mark.parametrize("level", ["mix", "L0"])
@pytest.mark.parametrize(("function", "expected"), WEIGHTS)
def test_parameters_are_measured(cause: Any, level: str, function: Change, expected: str) -> None:
    assert cause(weight("block.up.weight", function), level) == expected


def test_term_that_is_left_out_is_found_by_linearity(cause: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def product(self: Any, x: Any) -> Any:
        y = self.norm(x)
        return F.gelu(self.gate(y)) * self.up(y) * self.scale

    monkeypatch.setattr(Block, "forward", lambda self, x: x + product(self, x))
    assert cause(forward("block", product), "L0") == "input 0 is not added to output 0 in the target"


def test_swapped_operands_are_named_by_what_returned_them(cause_at: Any) -> None:
    def swapped(self: Any, x: Any) -> Any:
        y = self.norm(x)
        gate, up = self.gate(y), self.up(y)
        return self.last(x + F.gelu(up) * gate * self.scale)

    assert cause_at(forward("block", swapped), "Functional.gelu.0.forward", "input.0") == (
        "input 0 is the result of Functional.linear.2.forward in Module.block.up.Linear.forward.0 "
        "(golden: Functional.linear.1.forward in Module.block.gate.Linear.forward.0)"
    )


@pytest.mark.parametrize(("factor", "tells"), [
    (6.0, "probably the target sums the loss over 6 terms, and the golden run takes the mean"),
    (0.3, "the loss is scaled, or summed instead of averaged, or gradients are clipped"),
])  # fmt: skip
def test_one_factor_over_all_gradients(cause: Any, factor: float, tells: str) -> None:
    said = cause(None, "L0", lambda model, x: loss_of(model, x) * factor)
    assert said.startswith("all gradients of parameters are ") and said.endswith(tells)


def frozen(model: nn.Module) -> None:
    model.get_submodule("block.gate").requires_grad_(False)


def without_graph(self: Any, x: Any) -> Any:
    return torch.no_grad()(F.linear)(x, self.weight, self.bias)


LOST = [
    (frozen, "the parameter is frozen (requires_grad = False)"),
    (forward("block.gate", lambda self, x: F.linear(x, self.weight, self.bias).detach()), "is detached (detach)"),
    (forward("block.gate", without_graph), "is computed without a graph (no_grad)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), LOST)
def test_missing_gradient_has_its_reason(cause_at: Any, change: Change, expected: str) -> None:
    said = cause_at(change, "Module.block.gate.Linear.parameters_grad.0", "weight")
    assert said.startswith("block.gate.weight has no gradient in the target: ") and said.endswith(expected)


class Fused(torch.autograd.Function):
    """A kernel of one's own whose backward lacks the derivative of the root."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        root = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, root)
        return x * root * weight

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        x, weight, root = ctx.saved_tensors
        return grad * weight * root, (grad * x * root).sum(0)


def detached(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    return F.cross_entropy(y, torch.arange(6) % 8) + (y * y.detach()).mean()


def attached(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    return F.cross_entropy(y, torch.arange(6) % 8) + (y * y).mean()


GRADIENTS_OTHERWISE = [
    (forward("block.norm", lambda self, x: Fused.apply(x, self.weight)), loss_of, loss_of,
     "inside a torch.autograd.Function", "root = torch.rsqrt("),
    (None, detached, attached, "(detach)", "y * y"),
    (None, loss_of, lambda model, x: 0.25 * loss_of(model, x), "only the golden run calls", "0.25 * loss_of"),
    (forward("block.gate", without_graph), loss_of, loss_of, "(no_grad)", "self.gate(y)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "loss", "golden_loss", "expected", "line"), GRADIENTS_OTHERWISE)
def test_gradient_that_goes_another_way_has_the_line_of_its_cause(
    run: Any, change: Change | None, loss: Change, golden_loss: Change, expected: str, line: str
) -> None:
    paths = run("target", change, "mix", loss), run("golden", None, "mix", golden_loss)
    found = first_of(summaries(*paths, where=Where(1)))
    assert found is not None and found.divergence is not None
    assert expected in found.divergence.first.cause
    assert any(line in "".join(stack) for stack in (found.divergence.stack, found.divergence.golden_stack))


def sgd(**settings: Any) -> Change:
    return lambda parameters: torch.optim.SGD(parameters, **{"lr": 0.1, **settings})


OPTIMIZERS = [
    (sgd(lr=0.3), sgd(), "lr = 0.3 (golden: 0.1)"),
    (sgd(momentum=0.9, nesterov=True), sgd(momentum=0.9), "nesterov = True (golden: False)"),
    (sgd(weight_decay=0.1), sgd(), "weight_decay = 0.1 (golden: 0)"),
    (lambda parameters: torch.optim.Adam(parameters, 0.1, eps=0.1),
     lambda parameters: torch.optim.Adam(parameters, 0.1), "eps = 0.1 (golden: 1e-08)"),
    (lambda parameters: torch.optim.RMSprop(parameters, 0.1), sgd(), "optimizer = RMSprop (golden: SGD)"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "golden", "expected"), OPTIMIZERS)
def test_optimizer_speaks_its_own_words(run: Any, target: Change, golden: Change, expected: str) -> None:
    paths = [run(name, None, "L0", loss_of, each, 2) for name, each in (("target", target), ("golden", golden))]
    assert expected in _first(*paths).labelled_cause


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_gradients_of_the_step_before_are_found_in_those_of_the_next(run: Any, level: str) -> None:
    target = run("target", None, level, loss_of, None, 2, zeroes=False)
    first = _first(target, run("golden", None, level, loss_of, None, 2))
    assert first.cause.startswith("gradients of the target hold those of the step before as well: ")


def test_an_input_that_unrecorded_code_made_is_followed_by_the_option_that_records_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], new_debugger: Any
) -> None:
    runs = []
    for limit in (0.1, 100.0):
        torch.manual_seed(0)
        model, given = nn.Linear(WIDTH, WIDTH), torch.randn(4, WIDTH)
        debugger = new_debugger(dump_path=str(tmp_path / str(limit)), task="statistics", level="mix")
        debugger.start(model)
        (model(given).clamp(max=limit) * model.bias).sum().backward()
        debugger.stop()
        debugger.step()
        runs.append(str(tmp_path / str(limit) / "step0"))
    assert command_line.compare(*runs, tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "cause:" not in said
    assert "  next:   code without a record made this input; unless they record every function, collect" in said
