"""`PrecisionChecker`: right compilers accuse nobody, planted faults are named, and the training stays what it was.

``benchmarks/compiled_modules.py`` takes all models, faults and backends, inductor too.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled.faults import FAULTS, Planted
from compiled.models import OF_TORCH, Feed, made
from torch import nn

from msprobe.pytorch import PrecisionChecker
from probe.common.errors import MsprobeException
from probe.runtime_checks.compiled_call import DIFFERENT, IDENTICAL, NOT_CHECKED, ROUNDING
from probe.runtime_checks.precision_checker import CompiledReport

OF_TORCH_ALONE = sorted(name for name, fault in FAULTS.items() if fault.model in OF_TORCH)


def report(name: str, backend: Any, seed: int = 0) -> CompiledReport:
    model, classes, step = made(name, seed)
    checker = PrecisionChecker(backend)
    checker.wrap_by_policy(model, classes)
    return checker.compare(step, model)


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("name", OF_TORCH)
def test_a_right_compiler_accuses_no_module(name: str) -> None:
    found = report(name, "aot_eager")
    assert found.modules and {part.stage for part in found.parts} == {"forward", "backward"}
    assert {part.status for part in found.parts} <= {IDENTICAL, ROUNDING}
    assert next(iter(found.lines())).startswith(f"no difference: the compiled form of {found.modules} module")


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize("name", OF_TORCH_ALONE)
def test_the_module_with_a_planted_fault_is_named(name: str) -> None:
    fault = FAULTS[name]
    model, classes, _ = made(fault.model, 0)
    checked = [name for name, module in model.named_modules() if isinstance(module, classes)]
    planted = Planted(fault)
    found = report(fault.model, planted)
    assert planted.is_planted
    if fault.is_rounding:
        assert found.first is None
        return
    assert found.first is not None and found.first.module == checked[fault.where]
    assert found.first.stage == ("backward" if fault.in_backward else "forward")
    assert {part.module for part in found.parts if part.status == DIFFERENT} == {checked[fault.where]}


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("wrap", "checked"),
    [
        (lambda checker, model: checker.wrap_all_children(model.blocks), {"blocks.0", "blocks.1"}),
        (lambda checker, model: checker.wrap_all_children(model), {"first"}),
        (lambda checker, model: checker.wrap_by_policy(model.blocks[1], nn.Linear), {"blocks.1.0"}),
        (lambda checker, model: checker.wrap_by_policy(nn.Linear), {"first", "blocks.0.0", "blocks.1.0"}),
    ],
)
def test_modules_are_those_inside_of_the_one_that_is_given(
    wrap: Any, checked: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    checker, model = PrecisionChecker(), Blocks()
    wrap(checker, model)
    found = checker.compare(lambda model: model(torch.ones(3, 2)).sum().backward(), model)
    assert {part.module for part in found.parts} == checked
    # A list of modules has no call of its own.
    assert ("not checked: blocks." in capsys.readouterr().err) == ("first" in checked and len(checked) == 1)


class TwoMatrices(nn.Module):
    """A sum of a hundred products, whose rounding errors a float64 computation knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(100, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def scaled(factor: float) -> Callable[..., Any]:
    def backend(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            return [each * factor for each in graph.forward(*args)]

        return run

    return backend


@pytest.mark.parametrize(("units", "status"), [(0, IDENTICAL), (1, ROUNDING), (4096, DIFFERENT)])
def test_roundings_and_more(units: int, status: str) -> None:
    torch.manual_seed(1)
    model = TwoMatrices()
    checker = PrecisionChecker(scaled(1 + units * torch.finfo(torch.float32).eps))
    checker.wrap(model)
    x = torch.randn(16, 100)
    found = checker.compare(lambda model: model(x), model)
    (part,) = found.parts
    assert (part.status, part.module, part.class_name, part.tensor) == (status, "", "TwoMatrices", "output.0")
    with torch.no_grad():
        y = model(x)
    expected = (y * (1 + units * torch.finfo(torch.float32).eps) - y).abs().double()
    assert part.max_abs_diff == pytest.approx(float(expected.max()), rel=1e-6)
    assert part.mean_abs_diff == pytest.approx(float(expected.mean()), rel=1e-6)


def trained(checked: bool) -> list[Any]:
    """Everything that two steps leave: losses, parameters, states of modules and of the generator."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.BatchNorm1d(16), Feed(16), nn.Dropout(0.5), Feed(16))
    optimizer = torch.optim.Adam(model.parameters())
    checker = PrecisionChecker("eager")
    checker.wrap_all_children(model)
    found: list[Any] = []
    for _ in range(2):
        if checked:
            checker.install(model)
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        found += [loss.detach().clone(), *(each.grad.clone() for each in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
        if checked:
            # After the optimizer: what is judged is the call with the parameters that it had.
            assert checker.collect(loss).first is None
    hooks = [each for module in model.modules() for each in (*module._forward_hooks, *module._forward_pre_hooks)]
    assert not hooks
    return [*found, *model.state_dict().values(), torch.get_rng_state()]


def test_the_training_is_bitwise_the_same() -> None:
    for one, other in zip(trained(True), trained(False)):
        assert torch.equal(one, other)


def test_a_module_that_cannot_be_checked_says_why_and_the_training_goes_on() -> None:
    class Generating(nn.Module):
        def forward(self, parts: Any) -> torch.Tensor:
            return sum(parts)  # type: ignore[no-any-return]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Generating()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inside(each for each in (x, x))

    checker, model = PrecisionChecker("eager"), Model()
    checker.wrap_all_children(model)
    checker.install(model)
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 2.0))
    found = checker.collect()
    assert [part.status for part in found.parts] == [NOT_CHECKED]
    assert list(found.lines())[-1].startswith("not checked: inside (Generating): an argument of type generator")


def failing(graph: Any, inputs: Any) -> Any:
    raise ZeroDivisionError("a backend with a defect")


def test_a_backend_that_fails_costs_the_check_and_not_the_training() -> None:
    checker, model = PrecisionChecker(failing), nn.Sequential(nn.Linear(2, 2))
    checker.wrap_all_children(model)
    checker.install(model)
    model(torch.ones(1, 2)).sum().backward()
    (part,) = checker.collect().parts
    assert part.status == NOT_CHECKED and "a backend with a defect" in part.why


def test_a_check_without_memory_costs_the_check_and_not_the_training() -> None:
    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype == torch.float64:
                raise MemoryError("no memory for twice the bytes")
            return x.sin()

    checker, model = PrecisionChecker(scaled(1.5)), nn.Sequential(Large(), nn.Tanh())
    checker.wrap_all_children(model)
    checker.install(model)
    model(torch.ones(1, 2))
    first, *others = checker.collect().parts
    assert first.status == NOT_CHECKED and first.why.endswith("no memory for twice the bytes")
    assert [part.status for part in others] == [DIFFERENT]


class Pairs(nn.Module):
    """Returns a tuple, as the layers of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self.linear(x), {"doubled": 2 * x}


def test_the_backward_of_a_module_that_returns_a_tuple_is_checked() -> None:
    checker, model = PrecisionChecker("eager"), Pairs()
    checker.wrap(model)

    def step(model: nn.Module) -> None:
        first, others = model(torch.ones(2, 4, requires_grad=True))
        (first.sum() + others["doubled"].sum()).backward()

    found = checker.compare(step, model)
    assert [part.tensor for part in found.parts if part.stage == "forward"] == ["output.0", "output.1"]
    backward = {part.tensor for part in found.parts if part.stage == "backward"}
    assert backward == {"gradient of input 0", "gradient of linear.weight", "gradient of linear.bias"}


def test_a_failure_of_the_tool_goes_to_the_error_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    checker, model = PrecisionChecker("eager"), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    checker.wrap_all_children(model)
    checker.install(model)
    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(model(x), x, torch.eye(2), is_grads_batched=True)
    said = [line for line in capsys.readouterr().err.splitlines() if "the program goes on" in line]
    assert len(said) == 1 and "the gradient of output 0 of 1" in said[0] and "dump_error_info.log" in said[0]
    text = (tmp_path / "dump_error_info.log").read_text()
    assert "the gradient of output 0 of 0" in text and text.count("Traceback") == 1


def test_numbers_of_a_mask_that_are_equal_stay_equal() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # As Swin makes its mask of windows.
            groups = (torch.arange(8) // 4).to(x.dtype) + 2
            return x.masked_fill(groups - groups.unsqueeze(1) != 0, -100.0)

    model = Masked()
    checker = PrecisionChecker(scaled(1 + 1e-3))
    checker.wrap(model)
    found = checker.compare(lambda model: model(torch.randn(8, 8)), model)
    assert [part.status for part in found.parts] == [DIFFERENT]


def test_a_step_that_is_given_up_leaves_no_hook_on_what_it_returned() -> None:
    checker, model = PrecisionChecker("eager"), nn.Linear(2, 2)
    checker.wrap(model)
    returned = []

    def step(model: nn.Module) -> None:
        returned.append(model(torch.ones(1, 2)))
        assert returned[0]._backward_hooks
        raise KeyError("a batch that is not there")

    with pytest.raises(KeyError, match="a batch"):
        checker.compare(step, model)
    assert not returned[0]._backward_hooks and not model._forward_hooks and not checker.returned


def test_choosing_modules() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.ReLU())
    x = torch.ones(1, 2)

    def names(checker: Any) -> set[str]:
        return {part.module for part in checker.compare(lambda model: model(x), model).parts}

    checker = PrecisionChecker("eager")
    checker.wrap_by_policy(lambda module: isinstance(module, nn.Linear))
    assert names(checker) == {"0", "1.0"}
    checker.ignore(model[0])
    assert names(checker) == {"1.0"}
    checker = PrecisionChecker("eager")
    checker.wrap_all_children(model, depth=2)
    checker.ignore_by_policy(nn.ReLU)
    assert names(checker) == {"0", "1", "1.0"}


def test_the_table_and_the_graphs(tmp_path: Path, capsys: Any) -> None:
    model, classes, step = made("mlp", 0)
    checker = PrecisionChecker(
        Planted(FAULTS["product in bfloat16"]), dump_graphs=True, graph_dir=str(tmp_path / "graphs")
    )
    checker.wrap_by_policy(model, classes)
    found = checker.report(checker.compare(step, model), str(tmp_path / "out" / "table.csv"))
    assert capsys.readouterr().out.startswith("first difference: 1 (Feed), forward, output.0\n")
    with open(tmp_path / "out" / "table.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(found.parts)
    (first,) = [row for row in rows if row["status"] == DIFFERENT and row["tensor"] == "output.0"]
    assert (first["module"], first["class"], first["shape"], first["allclose"]) == ("1", "Feed", "[16, 32]", "False")
    assert sorted(path.name for path in (tmp_path / "graphs").iterdir()) == [f"{n}.graph0.txt" for n in range(3)]
    assert "layer_norm" in (tmp_path / "graphs" / "0.graph0.txt").read_text()


def test_graphs_stay_in_their_folder_whatever_a_module_is_called(tmp_path: Path) -> None:
    checker, model = PrecisionChecker("eager", dump_graphs=True, graph_dir=str(tmp_path / "graphs")), nn.Sequential()
    model.add_module("a/b", nn.Tanh())
    checker.wrap_all_children(model)
    checker.compare(lambda model: model(torch.ones(2)), model)
    assert [path.name for path in tmp_path.rglob("*.txt")] == ["a%2Fb.graph0.txt"]


def test_a_cast_of_the_compiled_form_is_rounding_of_that_dtype() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 16)), torch.randn(8, 16)
    checker = PrecisionChecker("eager", cast_dtype=torch.bfloat16)
    checker.wrap_all_children(model)
    found = checker.compare(lambda model: model(x), model)
    assert {part.status for part in found.parts} == {ROUNDING}
    assert not found.rows()[0]["allclose"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PrecisionChecker("inductr"), 'backend is "inductr"; did you mean "inductor"'),
        (lambda: PrecisionChecker(threshold=-1), "threshold is -1; allowed: a number from 0"),
        (lambda: PrecisionChecker(cast_dtype=torch.int8), "cast_dtype is torch.int8; allowed: a dtype such as"),
        (lambda: PrecisionChecker().wrap("layer"), "wrap got str; allowed: a module of pytorch"),
        (lambda: PrecisionChecker().wrap_by_policy("Linear"), "wrap_by_policy got no policy; allowed: a class"),
        (lambda: PrecisionChecker().install(nn.ReLU()), "no module of the model is wrapped; call wrap_all_children"),
        (lambda: PrecisionChecker().collect(), "nothing is watched; call install"),
        (lambda: PrecisionChecker().wrap_all_children(nn.ReLU(), depth=0), "depth is 0; allowed: an integer from 1"),
    ],
)
def test_bad_input(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(MsprobeException, match=words):
        make()


class Raising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            raise RuntimeError("not under the compiler")
        return self.layer(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[0]


class Uncompiled(nn.Module):
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize(
    ("odd", "why"), [(Raising, "not under the compiler"), (Recurrent, "GRU"), (Uncompiled, "disable")]
)
def test_a_module_that_cannot_be_compiled_leaves_out_itself_alone(odd: type[nn.Module], why: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), odd(), nn.LayerNorm(4), odd(), nn.Linear(4, 4))
    checker = PrecisionChecker()
    checker.wrap_all_children(model)
    found = checker.compare(lambda model: model(torch.randn(2, 3, 4)).square().mean().backward(), model)
    unchecked = {part.module: part.why for part in found.parts if part.status == NOT_CHECKED}
    assert set(unchecked) == {"1", "3"} and all(why in text for text in unchecked.values())
    assert {part.module for part in found.parts if part.status in (IDENTICAL, ROUNDING)} == {"0", "2", "4"}
