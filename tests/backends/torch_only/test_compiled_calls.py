"""The compiled way of a call of a function: it writes what Python writes, and is taken where it can be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from probe.backends.torch import tracker, views
from probe.collect import collector

FILES = ("dump.json", "stack.json", "construct.json", "sketch.npz")


class Passing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Program(nn.Module):
    """Calls of all kinds that the compiled way tells apart: plain, views, writes, several results, failures, modes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.inner(x))
        parts = y.split(2, dim=1)
        written = parts[0].reshape(-1) * 2
        view = written.view(2, -1)
        written.add_(1)
        with pytest.raises(RuntimeError):
            torch.mm(x, x)
        with torch.no_grad():
            y.detach().clone()[0, ::2] = 0.5
        with Passing():
            view = view.relu()
        torch.zeros(2, dtype=torch.float64, device="cpu").sum(dim=0, keepdim=True)
        again = checkpoint(self.inner, y, use_reentrant=False)
        return nn.functional.dropout(again, 0.0).topk(2).values.sum() + view.sum() + (y == x).any()


def step(model: nn.Module) -> None:
    model.zero_grad()
    model(torch.arange(24.0).view(4, 6)).backward()
    thread = threading.Thread(target=model, args=(torch.ones(4, 6),))
    thread.start()
    thread.join()


@pytest.mark.skipif(collector.PlainCalls is None, reason="it is not built here")
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_files_are_those_of_python_bit_for_bit(runs: Any, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, debugger = Program(), runs.new(level=level)
    compiled, made = collector.PlainCalls, []

    def make(*parts: Any) -> Any:
        made.append(compiled(*parts))
        return made[-1]

    for plain in (make, make, None):
        monkeypatch.setattr(collector, "PlainCalls", plain)
        debugger.start(model)
        step(model)
        debugger.stop()
        debugger.step()
    first, *others = ([Path(runs.read(number).folder, name).read_bytes() for name in FILES] for number in range(3))
    assert others == [first, first]
    assert len(made) == 2


class Once:
    """A function that is interrupted the first time it is called while this is `armed`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.armed = function, False

    def __call__(self, *args: Any) -> Any:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return self.function(*args)


def test_an_interrupt_before_a_module_goes_on(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Once(views.gradient_edge)
    for module in (tracker, views):
        monkeypatch.setattr(module, "gradient_edge", edge)
    model, debugger = nn.Linear(2, 2), runs.new(level="mix")
    debugger.start(model)
    edge.armed = True
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1, 2, requires_grad=True))
    debugger.stop()


def test_an_interrupt_in_the_hook_of_a_view_goes_on(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Once(views.WriteCheck.__call__)
    monkeypatch.setattr(views.WriteCheck, "__call__", lambda self: check(self))
    debugger = runs.new(level="L1")
    debugger.start(nn.Identity())
    loss = torch.ones(4, requires_grad=True).mul(2).split(2)[0].sum()
    check.armed = True
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    debugger.stop()


def test_hooks_take_gradients_in_a_list_as_compiled_autograd_gives_them(runs: Any) -> None:
    model, debugger = nn.Linear(2, 2), runs.new(level="L0")
    debugger.start(model)
    output = model(torch.ones(1, 2))
    node: Any = output.grad_fn
    (hook,) = (hook for key, hook in node.metadata.items() if key.startswith("msprobe pre-hook"))
    later = output * 2
    later.register_hook(lambda gradient: hook([gradient * 2]))
    # In a pass that ends before the node runs.
    torch.autograd.grad(later.sum(), output)
    debugger.stop()
    debugger.step()
    assert "Module.Linear.backward.0" in runs.read(0).data
