"""Other code in a function, and none of it afterwards."""

from __future__ import annotations

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
