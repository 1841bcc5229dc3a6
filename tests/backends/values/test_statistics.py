"""Max, Min, Mean and Norm of a tensor, against numpy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from described import describe

from probe.backends.shared import tensors

SHAPES = [(7,), (3, 4), (2, 3, 5), (1,), (1, 1, 1)]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-13}
KEYS = ("Max", "Min", "Mean", "Norm")


@pytest.fixture(params=["one pass", "the framework's functions"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """With the compiled reductions, and as where there is no compiler."""
    if request.param != "one pass":
        backend.without_compiled_parts(monkeypatch)
    elif tensors.reduce is None:
        pytest.skip("the package was installed without a C compiler")


def statistics(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry[key] for key in KEYS)


def random(shape: tuple[int, ...], seed: int = 11) -> Any:
    return np.random.default_rng(seed).normal(size=shape) * 3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, "float8_e4m3fn", "float8_e5m2"])
def test_floats_agree_with_numpy(backend: Any, dtype: str, shape: tuple[int, ...]) -> None:
    if dtype.startswith("float8") and dtype not in backend.small_floats:
        pytest.skip(f"{backend.name} has no {dtype}")
    tensor = backend.tensor(random(shape), dtype)
    exact = backend.numpy(tensor).astype(np.float64)
    entry = describe(backend, tensor)
    assert list(entry)[:8] == ["type", "dtype", "shape", *KEYS, "requires_grad"]
    assert entry["type"] == backend.tensor_type
    assert entry["dtype"] == backend.dtype_name(dtype)
    assert entry["shape"] == list(shape)
    assert entry["Max"] == exact.max() and entry["Min"] == exact.min()
    tolerance = TOLERANCE.get(dtype, 1e-6)
    assert entry["Mean"] == pytest.approx(exact.mean(), rel=tolerance, abs=tolerance)
    assert entry["Norm"] == pytest.approx(np.linalg.norm(exact), rel=tolerance)
    assert all(type(entry[key]) is float for key in KEYS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_precision_high_computes_in_float32(backend: Any, dtype: str) -> None:
    tensor = backend.tensor(random((400, 25)), dtype)
    exact = backend.numpy(tensor).astype(np.float64)
    entry = describe(backend, tensor, high_precision=True)
    assert entry["dtype"] == backend.dtype_name(dtype)
    assert entry["Max"] == exact.max() and entry["Min"] == exact.min()
    assert entry["Mean"] == pytest.approx(exact.mean(), rel=1e-5, abs=1e-6)
    assert entry["Norm"] == pytest.approx(np.linalg.norm(exact), rel=1e-5)


def test_norm_overflows_in_the_own_type_and_not_at_high_precision(backend: Any) -> None:
    tensor = backend.tensor(np.array([60000.0, 60000.0]), "float16")
    assert describe(backend, tensor)["Norm"] == math.inf
    exact = np.linalg.norm(backend.numpy(tensor).astype(np.float64))
    assert describe(backend, tensor, high_precision=True)["Norm"] == pytest.approx(exact, rel=1e-6)


def test_float64_is_not_reduced_by_high_precision(backend: Any) -> None:
    exact = random((50,)) + 1e9
    entry = describe(backend, backend.tensor(exact), high_precision=True)
    assert entry["Max"] == exact.max() and entry["Min"] == exact.min()
    assert entry["Mean"] == pytest.approx(exact.mean(), rel=1e-15)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_have_exact_bounds_and_a_mean_and_norm_in_float64(backend: Any, dtype: str) -> None:
    if dtype not in backend.integers:
        pytest.skip(f"{backend.name} has no {dtype}")
    info = np.iinfo(dtype)
    exact = np.array([[0, 1, 100], [3, info.max // 2, info.min // 8]], dtype=dtype)
    entry = describe(backend, backend.tensor(exact))
    wide = exact.astype(np.float64)
    assert entry["Max"] == exact.max() and entry["Min"] == exact.min()
    assert entry["Mean"] == pytest.approx(wide.mean(), rel=1e-14)
    assert entry["Norm"] == pytest.approx(np.linalg.norm(wide), rel=1e-14)
    assert (type(entry["Max"]), type(entry["Min"])) == (backend.integer_bounds, backend.integer_bounds)


@pytest.mark.parametrize(
    ("values", "dtype"), [([2**62 + 1, -(2**62) - 1, 2**53 + 1], "int64"), ([2**63 + 3, 2**53 + 1], "uint64")]
)
def test_bounds_of_large_integers_are_as_exact_as_their_type(backend: Any, values: list[int], dtype: str) -> None:
    entry = describe(backend, backend.tensor(np.array(values, dtype=dtype)))
    number = backend.integer_bounds
    assert (entry["Max"], entry["Min"]) == (number(max(values)), number(min(values)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, False], (True, False, None, None)),
        ([True, True], (True, True, None, None)),
        ([[False], [False]], (False, False, None, None)),
        (True, (True, True, None, None)),
    ],
)
def test_booleans_have_any_and_all(backend: Any, values: Any, expected: Any) -> None:
    entry = describe(backend, backend.tensor(np.array(values)))
    assert statistics(entry) == expected
    assert type(entry["Max"]) is bool


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_has_statistics_of_the_absolute_value(backend: Any, dtype: str) -> None:
    values = (random((4, 3)) + 1j * random((4, 3), 12)).astype(dtype)
    entry = describe(backend, backend.tensor(values))
    absolute = np.abs(values.astype(np.complex128))
    expected = [absolute.max(), absolute.min(), absolute.mean()]
    assert [entry["Max"], entry["Min"], entry["Mean"]] == pytest.approx(expected, rel=1e-6)
    assert entry["Norm"] == (pytest.approx(np.linalg.norm(absolute), rel=1e-6) if backend.complex_norm else None)


@pytest.mark.parametrize(
    ("value", "dtype"), [(2.5, "float32"), (-0.75, "float16"), (3.5, "bfloat16"), (-7, "int32"), (7, "uint8")]
)
def test_zero_dimensions_are_the_value_itself(backend: Any, value: Any, dtype: str) -> None:
    entry = describe(backend, backend.tensor(np.array(value), dtype))
    assert entry["shape"] == []
    assert statistics(entry) == (value, value, value, value)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64", "float16"])
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_empty_tensors_have_no_statistics(backend: Any, dtype: str, shape: tuple[int, ...]) -> None:
    entry = describe(backend, backend.tensor(np.zeros(shape, dtype=dtype)))
    assert entry["shape"] == list(shape)
    assert statistics(entry) == (None, None, None, None)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_in_the_data_gives_nan_everywhere_and_infinities_are_kept(backend: Any, dtype: str) -> None:
    for shape in ((5,), (2, 3)):
        values = np.ones(shape)
        values.reshape(-1)[1] = np.nan
        entry = describe(backend, backend.tensor(values, dtype))
        assert [math.isnan(value) for value in statistics(entry)] == [True] * 4
    one = describe(backend, backend.tensor(np.array([1.0, np.inf, 2.0]), dtype))
    assert statistics(one) == (math.inf, 1.0, math.inf, math.inf)
    both = describe(backend, backend.tensor(np.array([1.0, np.inf, -np.inf]), dtype))
    assert (both["Max"], both["Min"], both["Norm"]) == (math.inf, -math.inf, math.inf)
    assert math.isnan(both["Mean"])


COUNTED = ("Nonfinite", "Finite Max", "Finite Min")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, np.nan, -2.0, np.inf], (2, 1.0, -2.0)),
        ([[-np.inf, 4.0], [3.0, 5.0]], (1, 5.0, 3.0)),
        ([np.inf, -np.inf, np.nan], (3, None, None)),
        (np.nan, (1, None, None)),
    ],
)
def test_tensors_that_are_not_finite_say_how_much_is(backend: Any, dtype: str, values: Any, expected: Any) -> None:
    tensor = backend.tensor(np.array(values), dtype)
    entry, plain = describe(backend, tensor, nonfinite=True), describe(backend, tensor)
    assert tuple(entry[key] for key in COUNTED) == expected
    keys = list(entry)
    assert keys[keys.index("Norm") + 1 :][:4] == [*COUNTED, "requires_grad"]
    assert not set(COUNTED) & set(plain)
    # Else it is what it is without them.
    assert repr({key: value for key, value in entry.items() if key not in COUNTED}) == repr(plain)
    with_checksum = describe(backend, tensor, nonfinite=True, mode="md5")
    assert list(with_checksum) == [*keys, "md5"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([3e38, 3e38, -3e38], "float32"),  # their norm is infinite, or not, and they are finite
        ([60000, -60000], "float16"),
        ([1, 2, 3], "int32"),
        ([True, False], "bool"),
        ([], "float32"),
        (2.5, "float32"),
    ],
)
def test_tensors_that_are_finite_stay_as_they_are(backend: Any, values: Any, dtype: str) -> None:
    tensor = backend.tensor(np.array(values, dtype=dtype), dtype)
    assert describe(backend, tensor, nonfinite=True) == describe(backend, tensor)


def test_complex_numbers_and_checksums_alone_count_nothing(backend: Any) -> None:
    of_complex = backend.tensor(np.array([1 + 1j, complex(np.nan, 0)], dtype="complex64"))
    assert not set(COUNTED) & set(describe(backend, of_complex, nonfinite=True))
    checksum = describe(backend, backend.tensor(np.array([np.nan, 1.0]), "float32"), nonfinite=True, mode="xor")
    assert not {"Max", *COUNTED} & set(checksum)


@pytest.mark.parametrize("count", [9, 300_000])
def test_what_is_not_finite_is_counted_in_views_and_large_tensors(backend: Any, count: int) -> None:
    values = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    values[3], values[-1, 1] = np.nan, np.inf
    entry = describe(backend, backend.transposed(backend.tensor(values)), nonfinite=True)
    assert tuple(entry[key] for key in COUNTED) == (3, 2.0 * count - 2, 0.0)


@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
def test_views_that_are_not_contiguous_are_described_like_their_copy(backend: Any, mode: str) -> None:
    values = random((4, 6)).astype(np.float32)
    view = backend.transposed(backend.tensor(values))
    copy = backend.tensor(np.ascontiguousarray(values.T))
    first, second = describe(backend, view, mode=mode), describe(backend, copy, mode=mode)
    assert first["shape"] == [6, 4]
    assert [first.get("md5"), first.get("Max"), first.get("Min")] == [
        second.get("md5"),
        second.get("Max"),
        second.get("Min"),
    ]
    if mode != "xor":
        assert first["Norm"] == pytest.approx(second["Norm"], rel=1e-6)


def test_every_second_element_is_read_and_no_other(backend: Any) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    entry = describe(backend, backend.tensor(values)[:, 1::2])
    assert entry["shape"] == [3, 2]
    assert statistics(entry)[:3] == (11.0, 1.0, values[:, 1::2].mean())


def test_requires_grad_is_whether_a_gradient_is_taken(backend: Any) -> None:
    wanted, other = backend.tensor(np.ones(2, np.float32), requires_grad=True), backend.tensor(np.ones(2, np.float32))
    found = []

    def forward(x: Any) -> Any:
        y = x * other
        found.extend(describe(backend, tensor)["requires_grad"] for tensor in (x, other, y, other * other))
        return y

    backend.run(forward, wanted)
    assert found == [True, False, True, False]
    assert describe(backend, backend.parameter(np.ones(2, np.float32)))["requires_grad"] is True
    assert describe(backend, other)["requires_grad"] is False


def test_describing_changes_nothing(backend: Any) -> None:
    tensor = backend.tensor(random((3, 3)))
    before, state = backend.numpy(tensor), backend.random_state()
    for mode in ("statistics", "md5", "xor"):
        describe(backend, tensor, mode=mode)
    assert np.array_equal(backend.numpy(tensor), before) and backend.random_state() == state
