"""Kernels of the CPU replaced by others, below everything that a program or this tool calls."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, Callable

import torch


@contextlib.contextmanager
def planted(operator: str, kernel: Callable[..., Any]) -> Iterator[None]:
    """Inside, ``aten::<operator>`` runs `kernel` on the CPU."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel was there
        library.impl(operator, kernel, "CPU")
    try:
        yield
    finally:
        library._destroy()
