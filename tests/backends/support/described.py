"""The entry of one tensor, as a backend describes it."""

from __future__ import annotations

from typing import Any

from probe.common.interfaces import StatisticsMode


def describe(backend: Any, tensor: Any, **summary: Any) -> dict[str, Any]:
    entry = backend.adapter.tensors.describe_tensor(tensor, StatisticsMode(**summary))
    backend.adapter.tensors.resolve()
    assert backend.adapter.tensors.pending() == 0
    return entry
