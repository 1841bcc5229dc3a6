"""Functions of torch that a user has put others in the place of: each runs as often as without the tool, as called.

`UNSEEN_BY_TESTS` and what is said there are the exceptions; `docs/reference/pytorch.md` has those that users can meet.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import re
import types
import warnings
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_operators
from torch import nn

from probe.backends.torch.hooks import api_list

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
    """An object in the place of a function, bound as one; it can be neither compared nor hashed."""

    def __init__(self, name: str, function: Any, calls: Calls) -> None:
        self.given = name, function, calls

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

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
    every = {**torch_operators.overridable(), **torch_operators.operators()}
    names = [name for name, operator in every.items() if (operator.family if operator.family in OWNERS else "others") == family]
    return [every[name] for name in names if every[name].family not in ("vf", "aten", "distributed")]


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
    api_list.watched.cache_clear()
    yield
    api_list.watched.cache_clear()


def differences(calls: Calls, expected: Calls) -> str:
    more, fewer = collections.Counter(map(str, calls)), collections.Counter(map(str, expected))
    return "\n".join([f"more: {call}" for call in (more - fewer).elements()] + [f"fewer: {call}" for call in (fewer - more).elements()])


def as_text(results: list[Any]) -> list[str]:
    return [re.sub("0x[0-9a-f]+", "", repr(result)) for result in results]


def run_all(family: str) -> list[Any]:
    torch.manual_seed(0)
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator in programs(family):
            results.append(operator.program()(*operator.tensors()))
    return results


@pytest.mark.sampled(least=6)
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("when", ["before the debugger", "before start", "while collecting", "without start"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", [*OWNERS, "others"])
def test_a_function_that_a_user_has_wrapped_runs_as_often_and_as_called(
    runs: Any, family: str, form: str, when: str, level: str
) -> None:
    functions = functions_of(family)
    assert len(functions) > 25
    calls: Calls = []
    with wrapped(functions, form, calls):
        expected_results = run_all(family)
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
            debugger.start(nn.Sequential(nn.Linear(2, 2)))
        wrap("while collecting")
        results = run_all(family)
        if when != "while collecting":
            debugger.stop()
    debugger.stop()
    assert not differences(calls, expected)
    assert calls == expected
    assert as_text(results) == as_text(expected_results)
