"""Programs under ``torch.compile``: the same bits from the same compiled code, and a compiled module is one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from trainings import collecting

# torch's compiler looks at `.grad` of tensors that are no leaves, and hides the warning in a way that -W error undoes.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])
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


# Each returns the model to give to `start`, and what the program calls.


def the_model(model: Any) -> tuple[Any, Any]:
    compiled = torch.compile(model, backend="aot_eager")
    return compiled, compiled


def the_model_in_place(model: Any) -> tuple[Any, Any]:
    model.compile(backend="aot_eager")
    return model, model


def its_forward(model: Any) -> tuple[Any, Any]:
    model.forward = torch.compile(model.forward, backend="aot_eager")
    return model, model


def a_module_of_it(model: Any) -> tuple[Any, Any]:
    model.two = torch.compile(model.two, backend="aot_eager")
    return model, model


def a_module_in_place(model: Any) -> tuple[Any, Any]:
    model.two.compile(backend="aot_eager")
    return model, model


def one_inside_another(model: Any) -> tuple[Any, Any]:
    model.two.compile(backend="aot_eager")
    return the_model(model)


def a_function_around_it(model: Any) -> tuple[Any, Any]:
    return model, torch.compile(lambda x: torch.tanh(model(x)), backend="aot_eager", fullgraph=True)


FORMS = [
    the_model, the_model_in_place, its_forward, a_module_of_it, a_module_in_place, one_inside_another,
    a_function_around_it,
]  # fmt: skip


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
    given, call = form(model)
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


@pytest.mark.sampled(least=4, each=False)
@LEVELS
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__.replace("_", " "))
def test_the_same_bits_from_the_same_graphs(runs: Any, form: Any, level: str) -> None:
    expected, compiled = train(form, lambda model, step: step())
    assert compiled["graphs"] >= 1 and compiled["breaks"] == {}
    debugger = runs.new(level=level, task="tensor" if level == "mix" else "statistics")
    found, compiled_again = train(form, collecting(debugger))
    assert found == expected
    assert compiled_again == compiled


RECORDED = {
    the_model: ["_orig_mod.Net"],
    the_model_in_place: [],
    its_forward: [],
    a_module_of_it: ["one.fc.Linear", "one.act.ReLU", "one.Block", "two.OptimizedModule", "head.Linear"],
    a_module_in_place: ["one.fc.Linear", "one.act.ReLU", "one.Block", "two.Block", "head.Linear"],
    one_inside_another: ["_orig_mod.Net"],
    a_function_around_it: [],
}
"""Which modules have records: those that are not inside of compiled code."""


@pytest.mark.sampled(least=4, each=False)
@pytest.mark.parametrize("form", RECORDED, ids=lambda form: form.__name__.replace("_", " "))
@pytest.mark.parametrize("when", ["compiled before", "compiled while collecting"])
def test_a_compiled_module_is_one_record(runs: Any, form: Any, when: str) -> None:
    model, call = form(Net())
    x = torch.ones(5, 4, requires_grad=True)
    if when == "compiled before":
        call(x)
    debugger = runs.new(level="L0")
    debugger.start(model)
    out = call(x)
    out.sum().backward()
    debugger.stop()
    names = [f"Module.{name}" for name in RECORDED[form]]
    dump = runs.read()
    assert dump.forward == [f"{name}.forward.0" for name in names]
    assert sorted(dump.backward) == sorted(f"{name}.backward.0" for name in names)
    if names:
        (output,) = dump.data[f"{names[-1]}.forward.0"]["output"]
        assert (output["Max"], output["Min"]) == (out.max().item(), out.min().item())
        first = next(name for name in names if name.endswith(("one.Block", "Net")))
        (of_input,) = dump.data[f"{first}.backward.0"]["output"]
        assert (of_input["Max"], of_input["Min"]) == (x.grad.max().item(), x.grad.min().item())


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (the_model, "Module._orig_mod.Net is compiled with torch.compile and runs as a whole"),
        (a_module_of_it, "Module.two.OptimizedModule is compiled with torch.compile and runs as a whole"),
        (a_module_in_place, "Module.two.Block is compiled with torch.compile and runs as a whole"),
        (the_model_in_place, "the model given to start is compiled as a whole: its modules have no records."),
        (its_forward, "the model given to start is compiled as a whole: its modules have no records."),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_seen_is_said_once(
    runs: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: Any, text: str
) -> None:
    from probe.common import log

    monkeypatch.setattr(log, "_given", set())
    model, _ = form(Net())
    debugger = runs.new(level="L0")
    for _ in range(2):
        debugger.start(model)
        debugger.stop()
        debugger.step()
    lines = [line for line in capsys.readouterr().err.splitlines() if "[WARNING]" in line]
    # Nothing was called, which is said as well.
    (line,) = [line for line in lines if "has no records" not in line]
    assert text in line


def test_hooks_of_the_user_on_a_compiled_module_fire_as_often(runs: Any) -> None:
    def work(around: Callable[[Any, Callable[[], Any]], Any]) -> list[str]:
        torch._dynamo.reset()
        fired: list[str] = []
        model = Net()
        model.two = torch.compile(model.two, backend="aot_eager")
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
    model, _ = a_module_in_place(Net())
    held, debugger = model.two._compiled_call_impl, runs.new(level="L0")
    debugger.start(model)
    assert model.two._compiled_call_impl is not held
    debugger.stop()
    assert model.two._compiled_call_impl is held
    assert "_compiled_call_impl" not in vars(model.one)


def test_an_error_in_compiled_code_reaches_the_program(runs: Any) -> None:
    model, _ = a_module_in_place(Net())
    debugger = runs.new(level="L0")
    debugger.start(model)
    with pytest.raises(RuntimeError, match="same reduction dim"):
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

    compiled = torch.compile(choose, backend="eager", fullgraph=True)
    x, y = torch.linspace(-2, 2, 5), torch.tensor([0.0, -1, 0, 1, 3])
    debugger = runs.new(level=level)
    debugger.start(nn.Sequential())
    found = compiled(x, y)
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
