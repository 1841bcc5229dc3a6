"""The digest of elements in any order, compared with sorting; and its memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from probe.common.numerics import multiset
from probe.common.numerics.multiset import digest

DTYPES = ("float64", "float32", "float16", "int64", "int8", "bool", "complex64", "complex128")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_is_not_seen_and_an_element_is(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiset, "_PART", 7)
    values = (np.random.default_rng(0).normal(size=(4, 6, 5)) * 50).astype(dtype)
    values[0, 0] = 0
    whole = digest(values)
    assert digest(values.transpose(2, 0, 1)) == whole
    assert digest(np.ascontiguousarray(values[::-1, ::2].reshape(-1))) == digest(values[:, ::2])
    assert digest(np.random.default_rng(1).permutation(values.reshape(-1))) == whole
    other = values.copy()
    other[0, 0, 0] = 1
    assert digest(other) != whole
    # The elements are the same, the numbers of each are not.
    assert digest(np.array([1, 1, 0]).astype(dtype)) != digest(np.array([1, 0, 0]).astype(dtype))


def test_zeros_of_both_signs_are_equal_and_dtypes_are_not() -> None:
    assert digest(np.array([0.0, -0.0, 1])) == digest(np.array([1, 0.0, 0.0]))
    assert digest(np.zeros(3, np.int32)) != digest(np.zeros(3, np.uint32))
    assert digest(np.zeros(0)) != digest(np.zeros(1))
    assert digest(np.array(2.0)) == digest(np.array([2.0]))


def test_a_mapped_file_is_read_in_parts(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4_000_000, dtype=np.float32))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r").reshape(2000, 2000)
    tracemalloc.start()
    try:
        found = digest(mapped.T)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == digest(np.arange(3_999_999, -1, -1, dtype=np.float32))
    assert most < mapped.nbytes, most
