"""Values between numpy and the framework: never rounded twice, never shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.backends.protocol import UnknownValue

NUMBERS = np.array([[0.0, 1.0, 2.0], [96.0, 3.0, 64.0]])
"""Each exact in every dtype."""
# float64, and what it is in bfloat16 when it is rounded once. By way of float32 the second and the third would be ties.
ONCE = [
    (1.0 + 2.0**-9, 1.0),
    (1.0 + 2.0**-8 + 2.0**-40, 1.0 + 2.0**-7),
    (1.0 + 3 * 2.0**-8 - 2.0**-40, 1.0 + 2.0**-7),
    (-(1.0 + 2.0**-8 + 2.0**-40), -(1.0 + 2.0**-7)),
    (1e300, np.inf),
    (-np.inf, -np.inf),
    (2.0**-200, 0.0),
    (np.nan, np.nan),
]


def dtypes(backend: Any) -> list[str]:
    return [*backend.floats, *backend.small_floats, *backend.integers, *backend.complexes, "bool"]


def test_every_dtype_goes_there_and_back(backend: Any) -> None:
    for dtype in dtypes(backend):
        given = NUMBERS != 0 if dtype == "bool" else NUMBERS
        made = backend.adapter.execution.tensor(given, dtype, "cpu")
        assert backend.adapter.execution.dtype_name(made) == dtype
        assert backend.adapter.tensors.is_tensor(made)
        back = backend.adapter.execution.values(made)
        # MindSpore tells numpy of a bfloat16.
        assert back.dtype == ("float32" if dtype.startswith(("bfloat", "float8")) else dtype), dtype
        assert np.array_equal(back, given), dtype


def test_a_dtype_that_numpy_lacks_is_held_exactly(backend: Any) -> None:
    tensor = backend.adapter.execution.tensor(np.array([np.pi, -1e-3]), "bfloat16", "cpu")
    assert np.array_equal(
        backend.adapter.execution.values(tensor), np.array([3.140625, -0.00099945068359375], np.float32)
    )


def test_not_a_number_and_infinities_stay(backend: Any) -> None:
    given = np.array([np.nan, np.inf, -np.inf, -0.0])
    for dtype in backend.floats:
        back = backend.adapter.execution.values(backend.adapter.execution.tensor(given, dtype, "cpu"))
        assert np.array_equal(back, given, equal_nan=True), dtype
        assert np.signbit(back[3]), dtype


def test_it_is_rounded_once(backend: Any) -> None:
    given, expected = map(np.array, zip(*ONCE))
    back = backend.adapter.execution.values(backend.adapter.execution.tensor(given, "bfloat16", "cpu"))
    assert np.array_equal(back, expected, equal_nan=True)
    halves = np.array([1 + 2.0**-11 + 2.0**-40, 65520.0, 1 + 2.0**-11])
    back = backend.adapter.execution.values(backend.adapter.execution.tensor(halves, "float16", "cpu"))
    assert np.array_equal(back, np.array([1 + 2.0**-10, np.inf, 1]))


def test_rounding_a_long_array_is_rounding_each_value(backend: Any) -> None:
    given = np.random.default_rng(5).standard_normal(3_000_001)
    long = backend.adapter.execution.values(backend.adapter.execution.tensor(given, "bfloat16", "cpu"))
    for place in (0, 1 << 20, (1 << 20) - 1, (1 << 21) + 7, 3_000_000):
        short = backend.adapter.execution.values(
            backend.adapter.execution.tensor(given[place : place + 1], "bfloat16", "cpu")
        )
        assert long[place] == short[0], place


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_any_array_will_do(backend: Any, dtype: str) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    fixed = np.frombuffer(whole.tobytes(), np.float32)
    other_order = whole.astype(whole.dtype.newbyteorder())
    for given in (whole.T, whole[::-1, ::2], fixed, other_order, np.array(3.0), np.zeros((2, 0, 3)), whole > 3):
        made = backend.adapter.execution.tensor(given, dtype, "cpu")
        back = backend.adapter.execution.values(made)
        assert back.shape == tuple(made.shape) == given.shape
        assert np.array_equal(back, given)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_memory_is_shared(backend: Any, dtype: str) -> None:
    given = np.ones(4, np.float32)
    made = backend.adapter.execution.tensor(given, dtype, "cpu")
    given[:] = 2
    first = backend.adapter.execution.values(made)
    assert first.tolist() == [1] * 4
    backend.write(made, 5.0)
    assert first.tolist() == [1] * 4
    first[:] = 7
    assert backend.adapter.execution.values(made).tolist() == [5] * 4


def test_a_dtype_that_is_not_there_is_named(backend: Any) -> None:
    for dtype in ("float33", "Float32", "tensor"):
        with pytest.raises(UnknownValue, match=dtype):
            backend.adapter.execution.tensor(np.ones(2), dtype, "cpu")


def test_values_of_a_view(backend: Any) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(backend.adapter.execution.values(backend.transposed(backend.tensor(array))), array.T)


def test_the_frameworks_own_values_are_made_again(backend: Any) -> None:
    for value, _, entry in backend.framework_values():
        if entry is not None:
            made = backend.adapter.execution.plain_value(entry, "cpu")
            # A device is the one that the call runs on now.
            assert made == value or str(made) == "cpu" or "device" in entry["type"], entry


def test_a_value_that_cannot_be_made_is_named(backend: Any) -> None:
    for entry in ({"type": "torch.ProcessGroup", "group_ranks": [0]}, {"type": "no.such"}, {"type": ["a"]}, {}):
        with pytest.raises(UnknownValue, match=r"cannot be made"):
            backend.adapter.execution.plain_value(entry, "cpu")
    for _, _, entry in backend.framework_values():
        if entry is not None and entry["type"].endswith("dtype"):
            for text in ("no_such_dtype", None, 3, ["float32"]):
                with pytest.raises(UnknownValue):
                    backend.adapter.execution.plain_value({**entry, "value": text}, "cpu")
