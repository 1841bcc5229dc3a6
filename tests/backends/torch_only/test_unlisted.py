"""Task overflow_check records every function that makes or changes a number, in the list of msProbe or not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from torch.overrides import get_overridable_functions, get_testing_overrides

from probe.backends.torch.hooks.api_hooks import computes_nothing, unlisted_name, watched
from probe.backends.torch.originals import BUILT_IN

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def built_in() -> list[Any]:
    """Every built-in function that goes through ``__torch_function__``."""
    named = [function for functions in get_overridable_functions().values() for function in functions]
    return [each for each in dict.fromkeys([*get_testing_overrides(), *named]) if type(each) in BUILT_IN]


def test_no_function_is_missing_that_computes_something() -> None:
    listed = {each.function for functions in watched().values() for each in functions if callable(each.function)}
    functions = [each for each in built_in() if each not in listed]
    assert len(functions) > 200
    missing = {each.__name__ for each in functions if unlisted_name(each) is None}
    assert {name for name in missing if not computes_nothing(name)} == set()
    for name in ("complex", "fft_fft", "linalg_eigh", "special_entr", "empty", "zero_", "copy_", "uniform_"):
        assert name not in missing


def test_what_computes_nothing_returns_no_new_number() -> None:
    """Every function that is left out returns no tensor, or one whose numbers are those of its argument."""
    for function in built_in():
        if not computes_nothing(function.__name__) or function.__name__.startswith("_"):
            continue
        try:
            found = function(X.clone())
        except (TypeError, RuntimeError, NotImplementedError, UserWarning):
            continue
        for tensor in (each for each in (found if isinstance(found, tuple) else [found]) if torch.is_tensor(each)):
            numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            assert set(numbers.flatten().tolist()) <= set(X.flatten().tolist()), function


CALLS: list[tuple[Callable[[], Any], list[str]]] = [
    (lambda: torch.fft.fft(X), ["Torch.fft.0"]),
    (lambda: torch.linalg.eigh(X @ X.t()), ["Tensor.t.0", "Tensor.__matmul__.0", "Torch.eigh.0"]),
    (lambda: torch.special.entr(X), ["Torch.entr.0"]),
    (lambda: torch.complex(X, X), ["Torch.complex.0"]),
    (lambda: torch.full((2,), 1.0), ["Torch.full.0"]),
    (lambda: torch.empty(2), ["Torch.empty.0"]),
    (lambda: (X.half(), X.to(torch.float16), X.float()), ["Tensor.half.0", "Tensor.to.0", "Tensor.float.0"]),
    (lambda: X[X > 1], ["Tensor.__gt__.0", "Tensor.__getitem__.0"]),
    (lambda: X.clone().copy_(X), ["Tensor.copy_.0"]),
    (lambda: torch.randn(2), ["Torch.randn.0"]),
    # A function in Python is recorded by those that it calls.
    (lambda: torch.nn.functional.rms_norm(X, (2,)), ["Torch.rms_norm.0"]),
    (lambda: operator.floordiv(3.0, X), ["Torch.floor_divide.0"]),
    (lambda: (X.detach(), X.contiguous(), X.dim(), X.view(4), X[0, 0].item()), ["Tensor.__getitem__.0"]),
]


def forward_calls(runs: Any, call: Callable[[], Any], **settings: Any) -> list[str]:
    debugger = runs.new(**settings)
    debugger.start()
    call()
    # A NaN that a step ends with makes it be written.
    torch.sqrt(-X)
    debugger.stop()
    debugger.step()
    names = [name.removesuffix(".forward") for name in runs.read().forward]
    return names[: names.index("Torch.sqrt.0")]


@pytest.mark.parametrize(("call", "expected"), CALLS, ids=range(len(CALLS)))
def test_a_function_in_no_list_is_recorded(runs: Any, call: Callable[[], Any], expected: list[str]) -> None:
    # The minus of the NaN is no part of it.
    found = [name for name in forward_calls(runs, call, task="overflow_check") if "neg" not in name]
    assert found == expected


def several() -> None:
    torch.fft.fft(X)
    torch.special.entr(X[X > 1])
    _ = X.half(), torch.empty(2), X + 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"task": "statistics", "risk_level": "ALL"}, "gt half add"),
        # The task's own risk level.
        ({"task": "overflow_check", "risk_level": None}, "fft gt getitem entr half empty add"),
        ({"task": "overflow_check", "risk_level": "FOCUS"}, "gt add"),
    ],
)
def test_the_task_and_the_risk_level_say_what_is_recorded(runs: Any, settings: Any, expected: str) -> None:
    before = torch.fft.fft, torch.Tensor.__getitem__, torch.complex
    found = [name.split(".")[1].strip("_") for name in forward_calls(runs, several, **settings) if "neg" not in name]
    assert found == expected.split()
    runs.end()
    assert (torch.fft.fft, torch.Tensor.__getitem__, torch.complex) == before
    assert not isinstance(torch.fft.fft, FunctionType)
