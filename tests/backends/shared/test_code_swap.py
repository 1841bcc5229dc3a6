"""Other code in a function, and none of it afterwards."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from probe.backends.shared import patching
from probe.backends.shared.patching import CodeSwap


def double(number: int) -> int:
    return 2 * number


def test_a_swap_that_was_not_installed_takes_nothing_away() -> None:
    before = dict(vars(double))
    CodeSwap(double, lambda args, kwargs: "ours").restore()
    assert vars(double) == before and double(3) == 6


def test_a_swap_that_fails_half_way_says_why_and_is_no_hindrance_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise MemoryError("no room")

    swap = CodeSwap(double, lambda args, kwargs: "ours")
    monkeypatch.setattr(patching, "_trampoline", failing)
    with pytest.raises(MemoryError, match="no room"):
        try:
            swap.install()
        finally:
            swap.restore()
    assert double(3) == 6 and not vars(double)
    monkeypatch.undo()
    swap.install()
    assert double(3) == "ours"  # type: ignore[comparison-overlap]
    swap.restore()
    assert double(3) == 6 and not vars(double)


def test_code_that_somebody_covers_and_puts_back_still_runs() -> None:
    swap = CodeSwap(double, lambda args, kwargs: swap.body(*args, **kwargs))
    own = double.__code__
    swap.install()
    ours = double.__code__
    double.__code__ = (lambda number: 7).__code__
    swap.restore()
    assert double(3) == 7
    double.__code__ = ours
    assert double(3) == 6
    swap.install()
    assert double(3) == 6
    swap.restore()
    assert double.__code__ is own and double.__kwdefaults__ is None and double(3) == 6


def test_a_signature_that_a_function_was_given_stays_and_one_that_nobody_can_tell_is_none() -> None:
    def given(*args: Any) -> Any:
        return args

    # Of what is around a built-in function nobody can tell the signature.
    told, untold = functools.wraps(given)(lambda *args: args), functools.wraps(max)(lambda *args: args)
    mine = inspect.Signature()
    told.__signature__ = mine  # type: ignore[attr-defined]
    for function in (told, untold):
        before = dict(vars(function))
        swap = CodeSwap(function, lambda args, kwargs: "swapped")  # type: ignore[arg-type]
        swap.install()
        assert function(1) == "swapped" and vars(function) == before
        swap.restore()
        swap.restore()
        assert function(1) == (1,) and vars(function) == before
