"""The compiled part that follows backwards, against the tracker in Python: records are the same, and nothing stays."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_parts import Call, collected

from probe.backends.shared.backward_tracker import BackwardTracker
from probe.backends.shared.gradient_graph import CallWatch, ModuleWatch
from probe.backends.torch import tracker

pytestmark = pytest.mark.skipif(tracker.compiled is None, reason="the compiled tracker is not built here")


def given(*shape: int) -> torch.Tensor:
    return torch.ones(shape).cumsum(0).div(7).requires_grad_()


def summed(model: nn.Module, *shape: int) -> Callable[[], None]:
    return lambda: model(given(*shape)).sum().backward()


def convolutions() -> Any:
    parts = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 2), nn.ReLU(True)
    model = nn.Sequential(*parts)
    return model, summed(model, 2, 2, 5, 5)


def transformer() -> Any:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)
    return model, summed(model, 2, 3, 8)


def recurrent() -> Any:
    model = nn.LSTM(4, 4, 2)
    return model, lambda: model(given(3, 2, 4))[0].sum().backward()


def shared() -> Any:
    linear = nn.Linear(4, 4)
    model = nn.Sequential(linear, nn.Tanh(), linear, Call(lambda x: linear(x) * linear(x) + x))
    return model, summed(model, 2, 4)


def one_tensor_twice() -> Any:
    inner = Call(lambda x, y: x * y + x)
    model = nn.Sequential(inner)
    model.forward = lambda x: inner(x, x) + inner(x * 1, x)  # type: ignore[method-assign]
    return model, summed(model, 2, 4)


def handed_on() -> Any:
    inner = Call(lambda x, y: (x, y * 3, None, x.view(-1), 2))
    model = nn.Sequential(inner, nn.Identity())
    model.forward = lambda x: sum(  # type: ignore[method-assign]
        each.sum() for each in inner(model[1](x), x * 2) if isinstance(each, torch.Tensor)
    )
    return model, lambda: model(given(2, 4)).backward()


def written_views() -> Any:
    def write(x: Any) -> Any:
        x[0].mul_(2)
        return x.view(-1)

    model = nn.Sequential(nn.Linear(4, 4), Call(write), Call(lambda x: x[:4].add_(1)))
    return model, summed(model, 2, 4)


def recomputed() -> Any:
    inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    model = nn.Sequential(inner, Call(lambda x: checkpoint(inner, x, use_reentrant=True)))
    return model, summed(model, 2, 4)


def failing_once() -> Any:
    left = [1]

    def fail(x: Any) -> Any:
        if left and left.pop():
            raise ValueError
        return x * 2

    model = nn.Sequential(nn.Linear(4, 4), Call(fail))

    def program() -> None:
        with pytest.raises(ValueError):
            model(given(2, 4))
        model(given(2, 4)).sum().backward()

    return model, program


def twice_through() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Call(lambda x: (x * 2, x.sin())))

    def program() -> None:
        one, other = model(given(2, 4))
        one.sum().backward(retain_graph=True)
        other.sum().backward(retain_graph=True)
        (one + other).sum().backward()

    return model, program


def of_second_order() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def program() -> None:
        x = given(2, 4)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient.square().sum() + model(x).sum()).backward()

    return model, program


def in_another_thread() -> Any:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def program() -> None:
        thread = threading.Thread(target=model(given(2, 4)).sum().backward)
        thread.start()
        thread.join()

    return model, program


PROGRAMS = (
    convolutions, transformer, recurrent, shared, one_tensor_twice, handed_on, written_views, recomputed, failing_once,
    twice_through, of_second_order, in_another_thread,
)  # fmt: skip


def recorded(runs: Any, make: Callable[[], Any], folder: str) -> list[tuple[str, Any]]:
    """The records of a program in their order."""
    torch.manual_seed(0)
    runs.path = runs.path.with_name(folder)
    records = list(collected(runs, *make(), "L0").data.items())
    runs.end()
    return records


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_records_are_those_of_the_tracker_in_python(runs: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = recorded(runs, make, "compiled")
    monkeypatch.setattr(tracker, "compiled", None)
    assert any("backward" in name for name, _ in compiled)
    assert recorded(runs, make, "python") == compiled


def test_the_tracker_in_python_follows_nothing_that_is_ordinary(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[Any] = []
    watch = BackwardTracker.watch
    monkeypatch.setattr(BackwardTracker, "watch", lambda self, *args: (followed.append(args[1]), watch(self, *args)))
    recorded(runs, transformer, "plain")
    assert not followed
    recorded(runs, written_views, "written")
    assert followed


def test_nothing_stays_of_calls_that_are_over(runs: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Call(lambda x: x.view(-1)))

    def program() -> None:
        for _ in range(20):
            summed(model, 2, 4)()

    def there(folder: str) -> int:
        recorded(runs, lambda: (model, program), folder)
        gc.collect()
        kinds = (ModuleWatch, CallWatch, tracker.compiled.PreHook, tracker.compiled.PostHook)
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    there("warm")
    # A tracker keeps a new watch of each kind.
    assert there("again") <= there("first") + 2
