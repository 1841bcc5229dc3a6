"""The choices that every backend notes beside a tensor of indices, against numpy."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from probe.backends.protocol import Source
from probe.common.dump.choices import MOST, Choices, ChoicesTable, ChoicesWriter

SHAPE = (6, 5, 9)


def noted(backend: Any, indices: Any, source: Source | None) -> Choices:
    entry: dict[str, Any] = {}
    tensors = backend.adapter.tensors
    tensors.note_choices(entry, backend.tensor(indices), source)
    tensors.resolve()
    writer = ChoicesWriter()
    writer.take(3, entry["choices"])
    members = writer.members()
    found = ChoicesTable(writer.numbers, (members["choices.npy"], members["margins.npy"])).at(3)
    assert found is not None
    return found


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [-1, 1, 0])
def test_top_k_has_a_row_for_each_choice_and_its_margin(backend: Any, dim: int, largest: bool) -> None:
    values = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    order = np.argsort(-values if largest else values, axis=dim)
    indices = np.take(order, range(3), axis=dim)

    found = noted(backend, indices, Source(backend.tensor(values), dim, True, largest))

    rows = np.moveaxis(indices, dim, -1).reshape(-1, 3)
    np.testing.assert_array_equal(found.indices, rows)
    ordered = np.sort(np.moveaxis(values, dim, -1).reshape(len(rows), -1) * (-1 if largest else 1), axis=1)
    assert found.made == len(rows) and found.margins is not None
    np.testing.assert_allclose(found.margins, ordered[:, 3] - ordered[:, 2], rtol=1e-6)


@pytest.mark.parametrize("dim", [None, 0, -1])
def test_argmax_has_one_index_for_each_choice(backend: Any, dim: int | None) -> None:
    values = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    indices = np.asarray(values.argmax(axis=dim))

    found = noted(backend, indices, Source(backend.tensor(values), dim, False, True))

    np.testing.assert_array_equal(found.indices, indices.reshape(-1, 1))
    rows = values.reshape(1, -1) if dim is None else np.moveaxis(values, dim, -1).reshape(indices.size, -1)
    ordered = np.sort(rows, axis=1)
    assert found.margins is not None
    np.testing.assert_allclose(found.margins, ordered[:, -1] - ordered[:, -2], rtol=1e-6)


def test_the_first_choices_of_many_are_kept(backend: Any) -> None:
    indices = np.arange(MOST * 2).reshape(-1, 4)
    found = noted(backend, indices, None)
    assert found.indices.shape == (MOST // 4, 4) and found.made == MOST // 2 and found.margins is None
    np.testing.assert_array_equal(found.indices, indices[: MOST // 4])


def test_of_no_indices_there_are_no_choices(backend: Any) -> None:
    found = noted(backend, np.zeros((0, 4), np.int64), None)
    assert found.indices.size == 0 and found.made == 0 and found.margins is None
    entry: dict[str, Any] = {}
    backend.adapter.tensors.note_choices(entry, backend.tensor(np.zeros((3, 0), np.int64)), None)
    backend.adapter.tensors.resolve()
    writer = ChoicesWriter()
    writer.take(3, entry["choices"])
    assert not writer.numbers


def test_values_of_no_finite_margin_are_no_error(backend: Any) -> None:
    values = np.array([[np.nan, 1, 2], [-np.inf, -np.inf, -np.inf]], np.float32)
    found = noted(backend, np.array([[0], [1]]), Source(backend.tensor(values), -1, True, True))
    assert found.margins is not None and not np.isfinite(found.margins).any()


def test_of_equal_values_the_margin_is_zero(backend: Any) -> None:
    values = np.zeros((2, 4), np.float32)
    found = noted(backend, np.array([[0, 1], [2, 3]]), Source(backend.tensor(values), -1, True, True))
    assert found.margins is not None and found.margins.tolist() == [0.0, 0.0]


def test_numbers_that_do_not_belong_to_the_members_are_an_error() -> None:
    writer = ChoicesWriter()
    writer.take(0, Choices(np.zeros((2, 2), np.int32), 2).packed())
    writer.take(1, b"no choices")
    assert list(writer.numbers) == [0]
    members = writer.members()
    for numbers in (
        {0: (2**70, 0, 0, False)},
        {0: (2, 3, 3, False)},
        {0: (2, 2, 2, True)},
        {0: (0, 2, 2, False)},
        {0: (2, 2, 1, False)},
    ):
        with pytest.raises(ValueError):
            ChoicesTable(numbers, (members["choices.npy"], members["margins.npy"]))
    assert np.load(io.BytesIO(members["choices.npy"])).tolist() == [0, 0, 0, 0]
