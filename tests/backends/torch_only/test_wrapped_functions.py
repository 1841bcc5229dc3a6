"""Functions of torch that a user has replaced: each runs as often as without the tool, and as it was called.

The exceptions, with their reasons, are those of `docs/reference/pytorch.md`: attributes such as ``Tensor.shape``, what
was replaced in torch's private modules or in place of Python functions of its own before the tool was imported, one
built-in function in the place of another, and the questions by which a function finds out whether to hand itself over.
Left out here are also `torch_operators._NO_PROGRAM`, and functions for which no arguments are known there.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import inspect
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Callable

import pytest
import torch
import torch.nn.functional as F
import torch_operators
from torch import nn
from torch.overrides import TorchFunctionMode
from torch_parts import LEVELS, neutral

from probe.backends.torch.hooks import api_hooks

Calls = list[tuple[Any, ...]]
OWNERS = {"tensor": torch.Tensor, "functional": F, "torch": torch}


def logged(name: str, function: Any, calls: Calls, args: Any, kwargs: Any) -> Any:
    calls.append((name, *(type(value).__name__ for value in args), *((key, type(kwargs[key])) for key in kwargs)))
    return function(*args, **kwargs)


def as_function(name: str, function: Any, calls: Calls) -> Any:
    return lambda *args, **kwargs: logged(name, function, calls, args, kwargs)


def as_named_function(name: str, function: Any, calls: Calls) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return logged(name, function, calls, args, kwargs)

    return wrapper


class Counter:
    """An object in the place of a function, bound as one; it cannot be compared."""

    def __init__(self, name: str, function: Any, calls: Calls) -> None:
        self.given = name, function, calls

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = object.__hash__  # torch itself asks for it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return logged(*self.given, args, kwargs)


class Anew:
    """A descriptor that makes another object whenever it is asked."""

    def __init__(self, name: str, function: Any, calls: Calls) -> None:
        self.given = name, function, calls

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return logged(*self.given, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.call if instance is None else functools.partial(self.call, instance)

    __call__ = call


FORMS: dict[str, Callable[[str, Any, Calls], Any]] = {
    "function": as_function, "functools.wraps": as_named_function, "object": Counter, "made anew": Anew,
}  # fmt: skip


def functions_of(family: str) -> list[tuple[Any, str]]:
    """Owner and attribute of all that a program of the family calls by name."""
    found = []
    for operator in programs(family):
        path = operator.name[len(operator.family) + 1 :]
        *parts, attribute = path.split(".")
        owner = functools.reduce(getattr, parts, OWNERS.get(operator.family) or eval(operator.family))
        held = inspect.getattr_static(owner, attribute)
        if not isinstance(held, (staticmethod, classmethod, type)):
            found.append((owner, attribute))
    return sorted(set(found), key=lambda one: (one[0].__name__, one[1]))


@functools.cache
def programs(family: str) -> list[torch_operators.Operator]:
    every = {**torch_operators.overridable(), **torch_operators.operators()}.values()
    if family in OWNERS:
        return [operator for operator in every if operator.family == family]
    return [operator for operator in every if operator.family.startswith("torch.")]


@contextlib.contextmanager
def wrapped(functions: list[tuple[Any, str]], form: str, calls: Calls) -> Iterator[None]:
    """All of `functions` in the form of the user's."""
    absent = object()
    before = [(owner, name, vars(owner).get(name, absent)) for owner, name in functions]
    made = [FORMS[form](f"{owner.__name__}.{name}", getattr(owner, name), calls) for owner, name in functions]
    try:
        for (owner, name), wrapper in zip(functions, made):
            setattr(owner, name, wrapper)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is absent:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@pytest.fixture(autouse=True)
def known_anew() -> Iterator[None]:
    """The list of functions is read once for a process, and a test stands for one."""
    api_hooks.watched.cache_clear()
    yield
    api_hooks.watched.cache_clear()


def differences(calls: Calls, expected: Calls) -> str:
    more, fewer = collections.Counter(map(str, calls)), collections.Counter(map(str, expected))
    found = [f"more: {call}" for call in (more - fewer).elements()]
    return "\n".join([*found, *(f"fewer: {call}" for call in (fewer - more).elements())])


def run_all(family: str) -> None:
    torch.manual_seed(0)  # torch.lobpcg goes on from random numbers until it is near enough
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator in programs(family):
            operator.program()(*operator.tensors())


@pytest.mark.sampled(least=2, each=False)
@LEVELS
@pytest.mark.parametrize("when", ["before the debugger", "before start", "while collecting", "without start"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", [*OWNERS, "others"])
def test_a_function_that_a_user_has_wrapped_runs_as_often_and_as_called(
    runs: Any, family: str, form: str, when: str, level: str
) -> None:
    functions, model = functions_of(family), nn.Sequential(nn.Linear(2, 2))
    assert len(functions) > 25
    calls: Calls = []
    with wrapped(functions, form, calls):
        run_all(family)
    expected, calls = calls, []
    with contextlib.ExitStack() as stack:

        def wrap(now: str) -> None:
            if now == when:
                stack.enter_context(wrapped(functions, form, calls))

        wrap("before the debugger")
        debugger = runs.new(level=level)
        wrap("before start")
        wrap("without start")
        if when != "without start":
            debugger.start(model)
        wrap("while collecting")
        run_all(family)
        if when != "while collecting":
            debugger.stop()
    debugger.stop()
    assert not differences(calls, expected)
    assert calls == expected


class Doubled(torch.Tensor):
    """A class with a method of torch's in its own form."""

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        return super().backward(*args, **kwargs)

    def mul(self, other: Any) -> Any:
        return super().mul(other) * 2


class Through(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Pool(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(x).mul(2) + x[:, :1] - torch.sigmoid(x)
        return F.max_pool1d(y.unsqueeze(1), 2).norm() + torch.functional.norm(y) + y.split(2, dim=1)[0].sum()


WITHIN = {
    "nothing else": contextlib.nullcontext,
    "a mode of the user's": Through,
    "a default device": lambda: torch.device("cpu"),
}
TRAINING = [
    (torch.Tensor, "backward"), (torch.Tensor, "mul"), (torch.Tensor, "sum"), (torch.Tensor, "norm"),
    (torch.Tensor, "split"), (torch.Tensor, "__getitem__"), (torch.Tensor, "__add__"), (torch.Tensor, "item"),
    (torch.Tensor, "detach"), (torch.Tensor, "numel"), (torch.Tensor, "is_contiguous"), (torch.Tensor, "clone"),
    (torch.Tensor, "requires_grad_"), (torch.autograd, "backward"), (torch.autograd, "grad"), (nn.Module, "__call__"),
    (torch.optim.SGD, "step"), (torch.optim.Optimizer, "zero_grad"), (F, "relu"), (F, "linear"), (torch, "sigmoid"),
    (torch.functional, "norm"), (torch.linalg, "vector_norm"), (torch.fft, "fft"), (torch.special, "expit"),
    (torch._C._nn, "linear"),
]  # fmt: skip


def train(debugger: Any, model: nn.Module, within: str, begun: Callable[[], None]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        if debugger:
            debugger.start(model)
        begun()
        with warnings.catch_warnings(), WITHIN[within]():
            warnings.simplefilter("ignore")
            x = torch.arange(12.0).reshape(3, 4)
            model(x).backward()
            loss = model(x)
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            torch.autograd.grad((loss,), next(iter(model.parameters())), grad_outputs=torch.ones(()))
            torch.autograd.backward(model(x), inputs=list(model.parameters()))
            own = x.as_subclass(Doubled).requires_grad_()  # type: ignore[no-untyped-call]
            own.mul(2).sum().backward()
            torch.linalg.vector_norm(torch.special.expit(torch.fft.fft(x).abs())).item()
            optimizer.step()
            optimizer.zero_grad()
        if debugger:
            debugger.stop()
            debugger.step()


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@LEVELS
@pytest.mark.parametrize("when", ["before the debugger", "before start", "while collecting"])
@pytest.mark.parametrize("form", FORMS)
def test_a_training_runs_what_a_user_has_wrapped_as_often(
    runs: Any, form: str, when: str, level: str, task: str, within: str
) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), Pool())

    expected: Calls = []
    calls: Calls = []
    plain, watched = model(), model()
    with contextlib.ExitStack() as stack:
        train(None, plain, within, lambda: wrap_once(stack, form, expected))
    with contextlib.ExitStack() as stack:
        if when == "before the debugger":
            wrap_once(stack, form, calls)
        debugger = runs.new(task=task, level=level)
        if when == "before start":
            wrap_once(stack, form, calls)
        train(debugger, watched, within, lambda: wrap_once(stack, form, calls))
    assert not differences(calls, expected)
    assert calls == expected
    assert [p.tolist() for p in watched.parameters()] == [p.tolist() for p in plain.parameters()]
    if level != "L0":
        names = [name for name in runs.read(1).forward if not name.startswith("Module")]
        bases = collections.Counter(name.split(".")[1] for name in names)
        assert bases["linear"] == bases["relu"] == bases["sigmoid"] == 3
        assert bases["vector_norm"] == 1


def wrap_once(stack: contextlib.ExitStack, form: str, calls: Calls) -> None:
    if not hasattr(stack, "wrapped"):
        setattr(stack, "wrapped", True)  # noqa: B010
        stack.enter_context(wrapped(TRAINING, form, calls))


def test_nothing_of_the_user_is_held(monkeypatch: pytest.MonkeyPatch, runs: Any) -> None:
    shape: Any = torch.Tensor.shape

    def of_user(tensor: torch.Tensor) -> Any:
        return shape.__get__(tensor)

    held = weakref.ref(of_user)
    debugger = runs.new(task="statistics", level="L1")
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "shape", property(of_user))
        debugger.start(None)
        assert torch.ones(3).shape == (3,)
    del of_user
    gc.collect()
    assert held() is None
    debugger.stop()


class Doubling:
    """The method that `DoublingMethod` makes anew whenever it is asked for."""

    def __init__(self, method: Any, instance: Any) -> None:
        self.method, self.instance = method, instance

    def __call__(self, *args: Any) -> Any:
        return 2 * self.method(*(() if self.instance is None else (self.instance,)), *args)


class EqualDoubling(Doubling):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualDoubling) and self.method is other.method

    def __hash__(self) -> int:
        return hash(self.method)


class DoublingMethod:
    def __init__(self, method: Any, kind: type[Doubling]) -> None:
        self.method, self.kind = method, kind

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.kind(self.method, instance)


@pytest.mark.parametrize("kind", [Doubling, EqualDoubling])
@pytest.mark.parametrize("replaced", [["relu"], ["relu", "exp"]])
def test_methods_that_are_objects_made_anew_compute_what_they_do_without_us(
    runs: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Doubling], replaced: list[str]
) -> None:
    for name in replaced:
        monkeypatch.setattr(torch.Tensor, name, DoublingMethod(getattr(torch.Tensor, name), kind))
    dump = neutral(runs, nn.Identity, lambda _: [getattr(torch.zeros(1) + 1, name)() for name in replaced], "L1")
    assert {f"Tensor.{name}.0.forward" for name in replaced} <= set(dump.names)
