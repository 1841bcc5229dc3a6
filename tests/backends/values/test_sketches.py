"""The sketch of a tensor, against its definition in numpy: on the host, without compiled parts, and as on a device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from described import describe
from programs import batch, block_network

import probe
from probe.backends.shared import tensors
from probe.common.numerics.sketch import LANES, SHIFTED_ROWS, Sketch, sketch, unpacked

SEED = 20261129
PERIOD = LANES * SHIFTED_ROWS
DTYPES = [
    "float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "int32",
    "int64", "uint16", "uint32", "uint64", "complex64", "complex128", "bool",
]  # fmt: skip
WAYS = ["one pass", "numpy", "device"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, backend: Any) -> str:
    """In the compiled pass, as where there is no compiler, and by the operations for devices."""
    if request.param == "numpy":
        backend.without_compiled_parts(monkeypatch)
    elif request.param == "one pass" and tensors.reduce is None:
        pytest.skip("the package was installed without a C compiler")
    return str(request.param)


def made(backend: Any, tensor: Any, way: str, mode: str = "statistics") -> Sketch:
    if way == "device" and math.prod(tensor.shape):
        packed = backend.sketch_on_device(tensor)
    else:
        packed = describe(backend, tensor, mode=mode, sketch=True)["sketch"]
    assert type(packed) is bytes
    return unpacked(packed)


def agree(found: Sketch, expected: Sketch) -> None:
    scale = float(np.linalg.norm(expected.sums.astype(np.float64))) or 1.0
    np.testing.assert_allclose(found.sums, expected.sums, rtol=0, atol=5e-7 * scale, err_msg=f"seed {SEED}")
    assert found.excluded == expected.excluded and (found.marks is None) == (expected.marks is None)
    if expected.marks is not None:
        np.testing.assert_array_equal(found.marks, expected.marks)  # type: ignore[arg-type]


def normal(*shape: int) -> Any:
    return np.random.default_rng(SEED).standard_normal(shape)


def values_of(dtype: str, *shape: int) -> Any:
    """Numbers of both signs if the dtype has them, as an array that `Backend.tensor` takes."""
    if dtype.startswith("complex"):
        return (normal(*shape) + 1j * normal(2, *shape)[1]).astype(dtype)
    if dtype == "bool":
        return normal(*shape) > 0
    return abs(normal(*shape) * 50).astype(dtype) if dtype.startswith("uint") else normal(*shape) * 50


def tensor_of(backend: Any, dtype: str, *shape: int) -> Any:
    if dtype not in (*backend.floats, *backend.small_floats, *backend.integers, *backend.complexes, "bool"):
        pytest.skip(f"{backend.name} has no {dtype}")
    return backend.tensor(values_of(dtype, *shape), dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_is_sketched_by_its_definition(backend: Any, dtype: str, way: str) -> None:
    for shape in ((), (7,), (3, 5, 50), (0, 3)):
        tensor = tensor_of(backend, dtype, *shape)
        agree(made(backend, tensor, way), sketch(backend.numpy(tensor)))


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["md5", "xor"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_checksums_have_a_sketch_beside_them(backend: Any, dtype: str, mode: str, way: str) -> None:
    for shape in ((40, 9), ()):
        tensor = tensor_of(backend, dtype, *shape)
        agree(made(backend, tensor, way, mode), sketch(backend.numpy(tensor)))
        plain, sketched = (describe(backend, tensor, mode=mode, sketch=sketch) for sketch in (False, True))
        assert plain == {key: value for key, value in sketched.items() if key != "sketch"}


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "complex64"])
def test_views_are_read_in_the_order_of_the_tensor(backend: Any, dtype: str, way: str) -> None:
    images = tensor_of(backend, dtype, 2, 6, 7, 33)
    numbers = backend.numpy(images)
    views = {
        "transposed": (backend.permuted(images, (0, 1, 3, 2)), numbers.transpose(0, 1, 3, 2)),
        "channels last": (backend.permuted(images, (0, 3, 1, 2)), numbers.transpose(0, 3, 1, 2)),
        "strided": (images[:, 1::2, :, ::3], numbers[:, 1::2, :, ::3]),
        "part": (images[1:, :, :, 5:20], numbers[1:, :, :, 5:20]),
        "expanded": (backend.expanded(images[:1], (4, 6, 7, 33)), np.broadcast_to(numbers[:1], (4, 6, 7, 33))),
    }
    for name, (view, expected) in views.items():
        assert tuple(view.shape) == expected.shape, name
        agree(made(backend, view, way), sketch(np.ascontiguousarray(expected)))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_elements_that_are_not_finite_are_left_out_and_marked(backend: Any, dtype: str, way: str) -> None:
    numbers = values_of(dtype, 30, 50)
    numbers[3], numbers[4, 2], numbers[5], numbers[29, 49] = math.inf, math.nan, -math.inf, math.nan
    for tensor in (backend.tensor(numbers, dtype), backend.transposed(backend.tensor(numbers, dtype))):
        expected = sketch(backend.numpy(tensor))
        assert expected.excluded >= 102
        agree(made(backend, tensor, way), expected)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_masks_of_the_lowest_number_are_marks(backend: Any, dtype: str, way: str) -> None:
    lowest = -float(np.finfo(np.float32).max) if dtype != "bfloat16" else -3.3e38
    causal = np.where(np.tri(70) > 0, 0.0, lowest)
    found = [made(backend, backend.tensor(mask, dtype), way) for mask in (causal, causal.T)]
    agree(found[0], sketch(causal))
    assert found[0].excluded == found[1].excluded == 70 * 69 // 2
    assert found[0].marks is not None and not np.array_equal(found[0].marks, found[1].marks)  # type: ignore[arg-type]


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_tensors_longer_than_a_period_of_lanes(backend: Any, dtype: str, way: str) -> None:
    for elements in (PERIOD - 2, PERIOD + 64, 2 * PERIOD + 70):
        tensor = tensor_of(backend, dtype, elements // (2 if dtype == "complex64" else 1))
        agree(made(backend, tensor, way), sketch(backend.numpy(tensor)))


def test_large_integers_keep_seven_digits(backend: Any, way: str) -> None:
    exact = np.random.default_rng(SEED).integers(-(2**63), 2**63, 900)
    agree(made(backend, backend.tensor(exact), way), sketch(exact))


def test_nothing_is_sketched_unless_it_is_wanted(backend: Any, way: str) -> None:
    for mode in ("statistics", "md5", "xor"):
        assert "sketch" not in describe(backend, backend.tensor(normal(9)), mode=mode)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("level", "mode"),
    [("L0", "statistics"), ("L1", "statistics"), ("mix", "statistics"), ("mix", "md5"), ("mix", "xor")],
)
def test_everything_that_a_dump_has_of_a_step_has_the_sketch_of_its_values(
    runs: Any, backend: Any, level: str, mode: str
) -> None:
    model = block_network(backend)
    debugger = runs.new(level=level, task="tensor", summary_mode=mode)
    debugger.start(model)
    backend.run(model, batch(backend, requires_grad=True), model=model)
    debugger.stop()
    debugger.step()
    dump, states = probe.read(runs.path), set()
    assert isinstance(dump, probe.Dump)
    for record in dump:
        for item in record.items():
            if item.is_tensor:
                assert item.sketch is not None, item.name
                agree(item.sketch, sketch(dump.tensor(item)))
                states.add((item.state, record.name.rpartition(".")[0].rpartition(".")[2]))
    assert len(states) >= (4 if level == "L1" else 6)


def test_saved_values_and_their_gradients_have_sketches(runs: Any, backend: Any) -> None:
    debugger = runs.new(level="debug")
    given = backend.tensor(normal(9, 9).astype(np.float32), requires_grad=True)

    def forward(x: Any) -> Any:
        product = x * 3
        debugger.save({"a": [product, 1]}, "value")
        return product

    backend.run(lambda x: forward(x).sum(), given)
    debugger.stop()
    debugger.step()
    dump = probe.read(runs.path)
    assert isinstance(dump, probe.Dump)
    saved, gradients = ([item for item in record.items() if item.is_tensor] for record in dump)
    agree(saved[0].sketch, sketch(backend.numpy(given) * np.float32(3)))  # type: ignore[arg-type]
    agree(gradients[0].sketch, sketch(np.ones((9, 9))))  # type: ignore[arg-type]


def test_without_sketches_there_is_no_file_and_an_earlier_one_is_removed(runs: Any, backend: Any) -> None:
    for wanted in (True, False):
        debugger = runs.new(level="L1", sketch=wanted)
        debugger.start()
        backend.apis["abs"].call(batch(backend))
        debugger.stop()
        debugger.step()
        assert (runs.read().folder / "sketch.npz").exists() is wanted
        runs.end()
