"""What is not finite is counted in every kind of tensor, and on a device arrives with the other statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from probe.backends.torch.tensors.statistics import Statistics
from probe.common.interfaces import StatisticsMode

NAN, INF = float("nan"), float("inf")
COUNTED = ("Nonfinite", "Finite Max", "Finite Min")


class OnDevice(torch.Tensor):
    """In host memory, and says that it is not."""

    is_cpu = False  # type: ignore[assignment]


def describe(*tensors: torch.Tensor, **summary: Any) -> list[dict[str, Any]]:
    statistics = Statistics()
    entries: list[dict[str, Any]] = [{"type": "torch.Tensor"} for _ in tensors]
    for entry, tensor in zip(entries, tensors):
        statistics.fill(entry, tensor.as_subclass(OnDevice), None, StatisticsMode(**summary))
        entry["requires_grad"] = False
    assert statistics.pending() == len(tensors)
    assert all(entry["Max"] is None and "Nonfinite" not in entry for entry in entries)
    statistics.resolve()
    return entries


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
def test_counts_travel_with_the_statistics(dtype: torch.dtype) -> None:
    values = [[1.0, NAN, -2.0, INF], [INF, NAN], [1.0, 2.0]]
    entries = describe(*(torch.tensor(one).to(dtype) for one in values), nonfinite=True)
    assert [[entry.get(key, "none") for key in COUNTED] for entry in entries] == [
        [2, 1.0, -2.0], [2, None, None], ["none"] * 3,
    ]  # fmt: skip
    assert list(entries[0]) == ["type", "Max", "Min", "Mean", "Norm", *COUNTED, "requires_grad"]
    assert list(entries[2]) == ["type", "Max", "Min", "Mean", "Norm", "requires_grad"]


def test_a_number_is_copied_and_integers_count_nothing() -> None:
    number = torch.tensor(NAN)
    statistics = Statistics()
    entry: dict[str, Any] = {}
    statistics.fill(entry, number.as_subclass(OnDevice), None, StatisticsMode(nonfinite=True))
    number.fill_(1.0)
    statistics.resolve()
    assert [entry[key] for key in COUNTED] == [1, None, None]
    (whole,) = describe(torch.tensor([3, 4]), nonfinite=True)
    assert not set(COUNTED) & set(whole)


def test_nothing_is_counted_unless_asked_for() -> None:
    (entry,) = describe(torch.tensor([NAN, 1.0]))
    assert not set(COUNTED) & set(entry)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_memory_that_was_counted_can_still_be_resized(backend: Any, dtype: torch.dtype) -> None:
    tensor = torch.tensor([NAN, 1.0], dtype=dtype)
    for mode in ("statistics", "md5"):
        assert backend.adapter.tensors.describe_tensor(tensor, StatisticsMode(mode, nonfinite=True))["Nonfinite"] == 1
    assert tensor.resize_(1000).numel() == 1000


def test_views_with_their_sign_to_be_turned_are_counted_by_their_values(backend: Any) -> None:
    entry = backend.adapter.tensors.describe_tensor(
        torch._neg_view(torch.tensor([NAN, 2.0])), StatisticsMode(nonfinite=True)
    )
    assert [entry[key] for key in COUNTED] == [1, -2.0, -2.0]


def test_zeros_of_sparse_tensors_count_as_finite(backend: Any) -> None:
    tensor = torch.tensor([[INF, 0], [0, -3.0]]).to_sparse()
    entry = backend.adapter.tensors.describe_tensor(tensor, StatisticsMode(nonfinite=True))
    assert [entry[key] for key in COUNTED] == [1, 0.0, -3.0]
