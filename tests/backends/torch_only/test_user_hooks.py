"""Hooks of the user run beside ours, in their order and as often as without the tool."""

from __future__ import annotations

import contextlib
import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch_parts import LEVELS, Cube, collected, gradients, net, neutral


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_hooks_of_the_user_run_in_their_order_and_as_often(runs: Any, level: str) -> None:
    def work(model: Any, start: Any) -> list[str]:
        log: list[str] = []
        layer = model[1]
        layer.register_forward_pre_hook(lambda *_: log.append("pre 1"))
        layer.register_forward_hook(lambda *_: log.append("hook 1"))
        layer.register_full_backward_hook(lambda *_: log.append("backward 1"))
        layer.register_full_backward_pre_hook(lambda *_: log.append("backward pre"))
        model[0].weight.register_hook(lambda g: log.append("weight"))
        start()
        layer.register_forward_pre_hook(lambda *_: log.append("pre 2"), prepend=True)
        layer.register_forward_hook(lambda *_: log.append("hook 2"))
        model[0].weight.register_post_accumulate_grad_hook(lambda p: log.append("accumulated"))
        x = torch.ones(3, 4, requires_grad=True)
        x.register_hook(lambda g: log.append("x"))
        out = model(x)
        out.register_hook(lambda g: log.append("out"))
        out.sum().backward()
        return log

    expected = work(net(), lambda: None)
    model, debugger = net(), runs.new(level=level)
    found = work(model, lambda: debugger.start(model))
    debugger.stop()
    assert found == expected and len(found) == 10
    assert "Module.1.Tanh.backward.0" in runs.read().names


HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
PRE_HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_hooks_that_come_and_go_between_steps_keep_their_order(runs: Any, level: str) -> None:
    model, debugger = net(), runs.new(level=level)
    layer, x = model[1], torch.ones(3, 4)
    removed = layer.register_forward_hook(lambda *_: None)

    def present() -> list[list[int]]:
        return [list(getattr(module, name)) for module in model.modules() for name in (*HOOKS, *PRE_HOOKS)]

    def step(number: int) -> Any:
        before = present()
        debugger.start(model)
        model(x)
        copies.append(copy.deepcopy(model))
        pickles.append(pickle.dumps(model[0]))
        debugger.stop()
        debugger.step()
        assert present() == before
        return runs.read(number).data["Module.1.Tanh.forward.0"]

    copies: list[nn.Module] = []
    pickles: list[bytes] = []
    first = step(0)
    removed.remove()
    doubling = layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    layer.register_forward_hook(lambda module, args, output: output * 0 + 9, prepend=True)
    second = step(1)
    assert second["input_args"][0]["Max"] == pytest.approx(2 * first["input_args"][0]["Max"])
    assert second["output"][0]["Max"] == pytest.approx(np.tanh(second["input_args"][0]["Max"]))
    # A program may take all hooks away, ours as well, and has them again in the next step.
    debugger.start(model)
    layer._forward_pre_hooks.clear()
    layer._forward_hooks.clear()
    debugger.stop()
    debugger.step()
    doubling.remove()
    assert step(3)["output"] == first["output"]
    for each in (*copies, *map(pickle.loads, pickles)):
        each(x)


class Registering(nn.Module):
    """Registers hooks while it runs, and computes with a function of the user's own."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.log, self.first, self.last = log, nn.Linear(4, 6), nn.Linear(6, 2, bias=False)

    def forward(self, x: Any) -> Any:
        log = self.log
        number = len(log)
        self.first.weight.register_hook(lambda g: log.append(f"weight {number}"))
        hidden = self.first(x)
        hidden.register_hook(lambda g: g * 1.5)
        hidden.register_hook(lambda g: log.append(f"hidden {number}"))
        # One that leaves when it has fired, and one that is registered by another one.
        handle = self.last.register_forward_hook(lambda *_: (log.append("once"), handle.remove())[0])
        cubed = Cube.apply(hidden)
        node = cubed.grad_fn
        node.register_prehook(lambda gs: log.append(f"before the node {number}"))
        node.register_hook(lambda *_: log.append(f"after the node {number}"))

        def register_another(_: Any) -> None:
            hidden.register_hook(lambda _: log.append(f"registered in a hook {number}"))

        cubed.register_hook(register_another)
        out = self.last(cubed)
        out.retain_grad()
        return out


@LEVELS
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_hooks_that_come_and_go_while_collecting(runs: Any, level: str, task: str) -> None:
    def work(model: Any) -> Any:
        net, values = model["net"], []
        net.log.clear()
        net.first.register_full_backward_hook(lambda *_: net.log.append("full backward"))
        for _ in range(2):
            x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
            out = net(x)
            out.sum().backward(retain_graph=True)
            (out * 2).sum().backward(retain_graph=True)
            net.log.append("double")
            (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            first.pow(2).sum().backward()
            values += [out, out.grad, x.grad, *gradients(model)]
        net.first.register_forward_hook(lambda *_: net.log.append("late"), prepend=True)
        net(torch.ones(1, 4))
        assert len(net.log) > 30
        return net.log, values

    dump = neutral(runs, lambda: nn.ModuleDict({"net": Registering([])}), work, level, task=task)
    if level != "L1":
        assert {f"Module.net.Registering.backward.{number}" for number in (0, 1)} <= set(dump.backward)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_record_holds_what_forward_itself_got_and_returned(runs: Any, level: str) -> None:
    model = net()
    model[1].register_forward_pre_hook(lambda module, args: (args[0] * 0 + 1,))
    model[1].register_forward_hook(lambda module, args, output: output * 0 + 9)
    data = collected(runs, model, lambda: model(torch.ones(3, 4)), level).data
    assert data["Module.1.Tanh.forward.0"]["input_args"][0]["Min"] == 1.0
    assert data["Module.1.Tanh.forward.0"]["output"][0]["Max"] == pytest.approx(np.tanh(1.0))
    assert data["Module.2.Linear.forward.0"]["input_args"][0]["Max"] == 9.0


@pytest.mark.filterwarnings(
    "ignore:Using a non-full backward hook:FutureWarning", "ignore:Using non-full:FutureWarning"
)
def test_a_deprecated_backward_hook_is_named_and_its_module_has_no_backward(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model, debugger = net(), runs.new(level="L0")
    called = []
    model[2].register_backward_hook(lambda *_: called.append(1))
    debugger.start(model)
    model(torch.ones(3, 4, requires_grad=True)).sum().backward()
    debugger.stop()
    out = capsys.readouterr().err
    assert "Module.2.Linear has a hook of the deprecated register_backward_hook" in out and "[WARNING]" in out
    assert called == [1]
    assert runs.read().backward == ["Module.1.Tanh.backward.0", "Module.0.Linear.backward.0"]


class _PassingOn(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [contextlib.nullcontext, _PassingOn])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_torch_calls_for_full_backward_hooks_is_no_record(runs: Any, level: str, mode: Any) -> None:
    class Reshaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 6)

        def forward(self, x: Any) -> Any:
            return self.fc(x).view_as(torch.ones(2, 9))

    def work(start: Any) -> list[int]:
        model, called = nn.Sequential(Reshaping()), [0]
        for module in model.modules():
            module.register_full_backward_hook(lambda *_: called.append(1))
            module.register_full_backward_pre_hook(lambda *_: called.append(2))
        start(model)
        with mode():
            model(torch.ones(3, 4, requires_grad=True)).sum().backward()
        return called

    expected = work(lambda model: None)
    debugger = runs.new(level=level)
    assert work(debugger.start) == expected and len(expected) == 7
    debugger.stop()
    dump, of_the_user = runs.read(), ["Tensor.view_as.0.forward", "Tensor.view_as.0.backward"]
    assert [name for name in dump.names if "view_as" in name] == of_the_user
    assert [name for name in dump.tree if "view_as" in name] == (of_the_user if level == "mix" else [])


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_value_that_is_saved_is_packed_by_no_hook_of_the_users(
    runs: Any, backend: Any, monkeypatch: pytest.MonkeyPatch, task: str, compiled: bool
) -> None:
    """A checkpoint ends its recomputation at the last tensor that is packed, which must not be one of the tool's."""
    if not compiled:
        backend.without_compiled_parts(monkeypatch)
    debugger = runs.new(level="debug", task=task)
    value = torch.nn.Linear(3, 2)(torch.ones(4, 3))
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: packed.append(tensor) or tensor, lambda same: same):
        debugger.save(value, "value")
        assert packed == []
        value.square()
        assert packed, "the hooks are there"


class _Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(getattr(func, "__qualname__", str(func)))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_function_mode_around_start_and_step_sees_the_calls_of_the_program_only(runs: Any, level: str) -> None:
    def work(model: Any, start: Any, end: Any) -> list[str]:
        x = torch.ones(3, 4, requires_grad=True)
        with _Counting() as mode:
            for _ in range(2):
                start()
                model(x).sum().backward()
                end()
        return mode.called

    expected = work(net(), lambda: None, lambda: None)
    model, debugger = net(), runs.new(level=level)

    def end() -> None:
        debugger.stop()
        debugger.step()

    assert work(model, lambda: debugger.start(model), end) == expected
