"""Waiting for what a page does later."""

from __future__ import annotations

import time
from typing import Any

_SECONDS = 20.0


def until(page: Any, expression: str) -> None:
    """Wait until an expression holds on a page.

    Playwright's own way needs `eval`, which the page forbids.
    """
    end = time.monotonic() + _SECONDS
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not within {_SECONDS:.0f} s: {expression}"
        page.wait_for_timeout(20)
