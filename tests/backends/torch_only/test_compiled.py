"""Programs under ``torch.compile``: the same bits from the same compiled code, and a compiled module is one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch_parts import LEVELS
from trainings import collecting

from probe.common import log

# torch's compiler looks at `.grad` of tensors that are no leaves, and hides the warning in a way that -W error undoes.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

# torch compiles a function again at most eight times, and from then on runs it uncompiled.
STEPS = 10


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.act(self.fc(x)) + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = Block(), Block(), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.two(self.one(x)))


def compiled(model: Any, name: str = "") -> Any:
    """The model with a module of it, or all of it, compiled."""
    if not name:
        return torch.compile(model, backend="aot_eager")
    setattr(model, name, torch.compile(getattr(model, name), backend="aot_eager"))
    return model


def in_place(model: Any, name: str = "") -> Any:
    model.get_submodule(name).compile(backend="aot_eager")
    return model


def a_function_around(model: Any) -> Any:
    return torch.compile(lambda x: torch.tanh(model(x)), backend="aot_eager", fullgraph=True)


BLOCKS = ["one.fc.Linear", "one.act.ReLU", "one.Block"]
FORMS: dict[str, tuple[Callable[[Any], Any], list[str], str]] = {
    # What the program calls, the modules with records (those that are not inside of compiled code), and what is said.
    "the model": (compiled, ["_orig_mod.Net"], "Module._orig_mod.Net is compiled"),
    "the model in place": (in_place, [], "the model given to start is compiled as a whole"),
    "its forward": (lambda model: compiled(model, "forward"), [], "the model given to start is compiled as a whole"),
    "a module of it": (
        lambda model: compiled(model, "two"), [*BLOCKS, "two.OptimizedModule", "head.Linear"],
        "Module.two.OptimizedModule is compiled",
    ),
    "a module in place": (
        lambda model: in_place(model, "two"), [*BLOCKS, "two.Block", "head.Linear"], "Module.two.Block is compiled",
    ),
    "one inside another": (lambda model: compiled(in_place(model, "two")), ["_orig_mod.Net"], ""),
    "a function around it": (a_function_around, [], ""),
}  # fmt: skip
EACH_FORM = pytest.mark.parametrize("form", FORMS)


def of_form(form: str, model: Any) -> tuple[Any, Any]:
    """The model to give to `start`, and what the program calls."""
    call = FORMS[form][0](model)
    return (call if isinstance(call, nn.Module) else model), call


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def counted() -> dict[str, Any]:
    """Graphs that were compiled, and reasons for which code was broken up into several."""
    counters = torch._dynamo.utils.counters
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": dict(counters["graph_break"])}


def train(form: Any, around: Callable[[Any, Callable[[], Any]], Any]) -> tuple[list[bytes], dict[str, Any]]:
    """Everything that a program computes, and how it was compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = Net()
    given, call = of_form(form, model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for number in range(STEPS):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(number))

        def step(x: Any = x) -> None:
            optimizer.zero_grad()
            loss = call(x).pow(2).sum()
            loss.backward()
            optimizer.step()
            seen.extend([loss.detach().clone(), *(p.grad.clone() for p in model.parameters())])

        around(given, step)
    values = [*seen, *model.parameters(), torch.get_rng_state()]
    return [value.detach().numpy().tobytes() for value in values], counted()


@pytest.mark.sampled(least=3, each=False)
@LEVELS
@EACH_FORM
def test_the_same_bits_from_the_same_graphs(runs: Any, form: Any, level: str) -> None:
    expected, graphs = train(form, lambda model, step: step())
    assert graphs["graphs"] >= 1 and graphs["breaks"] == {}
    debugger = runs.new(level=level, task="tensor" if level == "mix" else "statistics")
    found, graphs_again = train(form, collecting(debugger))
    assert found == expected
    assert graphs_again == graphs


@pytest.mark.sampled(least=3, each=False)
@EACH_FORM
@pytest.mark.parametrize("when", ["compiled before", "compiled while collecting"])
def test_a_compiled_module_is_one_record_and_what_cannot_be_seen_is_said_once(
    runs: Any, form: str, when: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log.reset()
    model, call = of_form(form, Net())
    x, results = torch.ones(5, 4, requires_grad=True), []
    if when == "compiled before":
        call(x)
    debugger = runs.new(level="L0")
    for _ in range(2):
        debugger.start(model)
        results.append(call(x))
        results[-1].sum().backward()
        debugger.stop()
        debugger.step()
        gradient, x.grad = x.grad, None
    names, said = [f"Module.{name}" for name in FORMS[form][1]], FORMS[form][2]
    dump = runs.read()
    assert dump.forward == [f"{name}.forward.0" for name in names]
    assert sorted(dump.backward) == sorted(f"{name}.backward.0" for name in names)
    if names:
        (output,) = dump.data[f"{names[-1]}.forward.0"]["output"]
        assert (output["Max"], output["Min"]) == (results[0].max().item(), results[0].min().item())
        first = next(name for name in names if name.endswith(("one.Block", "Net")))
        (of_input,) = dump.data[f"{first}.backward.0"]["output"]
        assert (of_input["Max"], of_input["Min"]) == (gradient.max().item(), gradient.min().item())
    lines = [line for line in capsys.readouterr().err.splitlines() if "[WARNING]" in line and "compiled" in line]
    assert not said or [said in line for line in lines] == [True]


def test_hooks_of_the_user_on_a_compiled_module_fire_as_often(runs: Any) -> None:
    def work(around: Callable[[Any, Callable[[], Any]], Any]) -> list[str]:
        torch._dynamo.reset()
        fired: list[str] = []
        model = Net()
        compiled(model, "two")
        model.two.register_forward_hook(lambda *_: fired.append("two"))
        model.two.register_full_backward_hook(lambda *_: fired.append("two backward"))
        model.one.register_forward_pre_hook(lambda *_: fired.append("one"))
        for _ in range(2):
            around(model, lambda: model(torch.ones(5, 4)).sum().backward())
        return fired

    expected = work(lambda model, step: step())
    assert work(collecting(runs.new(level="mix"))) == expected
    assert expected.count("one") == expected.count("two") == 2


def test_a_module_that_was_compiled_in_place_is_found_as_it_was(runs: Any) -> None:
    model = in_place(Net(), "two")
    held, debugger = model.two._compiled_call_impl, runs.new(level="L0")
    debugger.start(model)
    assert model.two._compiled_call_impl is not held
    debugger.stop()
    assert model.two._compiled_call_impl is held
    assert "_compiled_call_impl" not in vars(model.one)


def test_an_error_in_compiled_code_reaches_the_program(runs: Any) -> None:
    model = in_place(Net(), "two")
    debugger = runs.new(level="L0")
    debugger.start(model)
    with pytest.raises(RuntimeError, match="dim"):
        model.two(torch.ones(5, 3))
    model(torch.ones(5, 4))
    debugger.stop()
    assert runs.read().tree["Module.head.Linear.forward.0"] is None


@LEVELS
@torch._dynamo.config.patch(error_on_recompile=True)
def test_hooks_of_the_tool_are_not_compiled_where_compiled_code_calls_backward(runs: Any, level: str) -> None:
    """torch then looks at every function that runs in a hook, and would compile it anew for each node."""

    def train(around: Callable[[Any, Callable[[], Any]], None]) -> list[bytes]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Net()
        seen = []

        @torch.compile(backend="eager")
        def finish(loss: Any) -> Any:
            loss.backward()
            return loss + 1

        for _ in range(3):

            def step() -> None:
                model.zero_grad()
                finish(model(torch.ones(5, 4)).pow(2).sum())
                seen.extend(p.grad.numpy().tobytes() for p in model.parameters())

            around(model, step)
        return seen

    expected = train(lambda model, step: step())
    assert train(collecting(runs.new(level=level))) == expected
    for number in range(3):
        wanted = "Functional.linear.0.backward" if level == "L1" else "Module.two.fc.Linear.backward.0"
        assert wanted in runs.read(number).names


@LEVELS
def test_operators_are_compiled_as_without_us(runs: Any, level: str) -> None:
    def choose(x: Any, y: Any) -> Any:
        chosen = (x == y) & (x > 0)
        chosen |= x < -1
        z = x * 1
        z[0] = 2
        return torch.where(chosen, z, y)

    call = torch.compile(choose, backend="eager", fullgraph=True)
    x, y = torch.linspace(-2, 2, 5), torch.tensor([0.0, -1, 0, 1, 3])
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential())
    found = call(x, y)
    debugger.stop()
    assert torch.equal(found, choose(x, y))


@pytest.mark.parametrize("order", [("on", "off", "on"), ("off", "on", "off")], ids=" ".join)
def test_functions_of_torch_compile_as_a_whole_in_any_order_of_start_and_stop(runs: Any, order: Any) -> None:
    model = nn.Linear(2, 2)

    def clip_and_pad(x: Any) -> Any:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        return norm + nn.functional.pad(x, (0, 1), value=-100).sum() + x.__rpow__(2.0)

    x = torch.ones(3)
    model(torch.ones(1, 2)).sum().backward()
    expected = clip_and_pad(x)
    debugger = runs.new(level="mix")
    for state in order:
        if state == "on":
            debugger.start(model)
        assert torch.equal(torch.compile(clip_and_pad, backend="eager", fullgraph=True)(x), expected)
        if state == "on":
            debugger.stop()
            debugger.step()


def test_a_function_of_torch_that_asks_for_a_value_is_called_in_compiled_code(runs: Any) -> None:
    """Compiled code ends where the value is asked for, and torch 2.5 then compiled the tool's own frames."""

    def loss(*given: torch.Tensor) -> torch.Tensor:
        return nn.functional.gaussian_nll_loss(*given)

    torch.manual_seed(0)
    given = [torch.rand(4, 6) for _ in range(3)]
    torch._dynamo.reset()
    expected = torch.compile(loss, backend="eager")(*given)
    torch._dynamo.reset()
    model, debugger = Net(), runs.new(level="L1")
    debugger.start(model)
    found = torch.compile(loss, backend="eager")(*given)
    debugger.stop()
    assert torch.equal(found, expected)
