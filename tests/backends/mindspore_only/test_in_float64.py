"""What MindSpore has no float64 kernel for on the CPU, against its own kernels in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, ops

DRAWS = np.random.default_rng(7)
IMAGE = DRAWS.normal(size=(2, 4, 9, 8))
CHANNELS = [DRAWS.normal(size=4) for _ in range(3)]
POSITIVE = DRAWS.uniform(0.5, 1.5, size=4)


def results(backend: Any, function: Callable[..., Any], dtype: str, arrays: Sequence[Any]) -> list[Any]:
    """The first result and the gradients of all arrays."""
    execution = backend.adapter.execution
    evaluated = execution.evaluate(
        lambda tensors: function(*tensors),
        [execution.tensor(array, dtype, "cpu") for array in arrays],
        range(len(arrays)),
    )
    first = evaluated.output[0] if isinstance(evaluated.output, tuple) else evaluated.output
    values = execution.values(first)
    sent = np.random.default_rng(8).normal(size=values.shape)
    return [values, *map(execution.values, evaluated.gradients([execution.tensor(sent, dtype, "cpu")]))]


def check(backend: Any, base: str, arrays: Sequence[Any], attributes: Any = None, **arguments: Any) -> None:
    """Hold what computes in float64 against what computes in float32."""
    found = []
    for function, dtype in (
        (backend.adapter.execution.function(base, attributes), "float32"),
        (backend.adapter.execution.reference_function(base, attributes), "float64"),
    ):
        found.append(results(backend, lambda *tensors, call=function: call(*tensors, **arguments), dtype, arrays))
    assert all(each.dtype == np.float64 for each in found[1])
    for single, double in zip(*found):
        assert single.shape == double.shape
        assert np.abs(single - double).max() <= 2e-6 * np.abs(double).max()


@pytest.mark.parametrize("stride, dilation, groups", [(1, 1, 1), ((2, 1), 1, 2), (1, 2, 4), (2, 2, 1)])
@pytest.mark.parametrize(
    "mode, padding", [("valid", 0), ("same", 0), ("pad", 1), ("pad", (1, 2)), ("pad", [2, 1, 0, 1])]
)
def test_convolution_of_images(backend: Any, mode: str, padding: Any, stride: Any, dilation: int, groups: int) -> None:
    weight = DRAWS.normal(size=(8, 4 // groups, 3, 2))
    if np.size(padding) < 4:
        settings = {"stride": stride, "pad_mode": mode, "padding": padding, "dilation": dilation, "groups": groups}
        check(backend, "Functional.conv2d", [IMAGE, weight, DRAWS.normal(size=8)], **settings)
    if np.size(padding) != 2:
        made_with = {"out_channel": 8, "kernel_size": [3, 2], "pad_mode": mode, "pad": padding}
        made_with.update(stride=stride, dilation=dilation, group=groups)
        check(backend, "Primitive.conv.Conv2D", [IMAGE, weight], made_with)


@pytest.mark.parametrize("mode, padding", [("same", 0), ("pad", 1)])
def test_convolution_of_other_axes(backend: Any, mode: str, padding: int) -> None:
    line, body = DRAWS.normal(size=(2, 3, 9)), DRAWS.normal(size=(1, 2, 4, 5, 6))
    check(backend, "Functional.conv1d", [line, DRAWS.normal(size=(4, 3, 3))], stride=2, pad_mode=mode, padding=padding)
    check(backend, "Functional.conv3d", [body, DRAWS.normal(size=(4, 2, 3, 3, 2))], pad_mode=mode, padding=padding)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("base", ["Functional.batch_norm", "Primitive.bn.BatchNorm"])
def test_batch_normalisation(backend: Any, base: str, training: bool) -> None:
    weight, bias, mean = CHANNELS
    attributes = {"is_training": training, "epsilon": 1e-3} if base.startswith("Primitive.") else None
    functions = (
        backend.adapter.execution.function(base, attributes),
        backend.adapter.execution.reference_function(base, attributes),
    )
    found = []
    for function, dtype in zip(functions, ("float32", "float64")):
        statistics = [Tensor(array.astype(dtype)) for array in (mean, POSITIVE)]

        def call(x: Any, scale: Any, shift: Any, function: Any = function, statistics: Any = statistics) -> Any:
            if attributes is None:
                return function(x, *statistics, scale, shift, training, 0.1, 1e-3)
            return function(x, scale, shift, *statistics)

        found.append(results(backend, call, dtype, [IMAGE, weight, bias]))
    for single, double in zip(*found):
        assert np.abs(single - double).max() <= 2e-6 * np.abs(double).max()


@pytest.mark.parametrize("name", ["relu6", "hardshrink", "softshrink"])
def test_elementwise(backend: Any, name: str) -> None:
    check(backend, f"Functional.{name}", [8 * CHANNELS[0]])


def test_lerp(backend: Any) -> None:
    check(backend, "Functional.lerp", [*CHANNELS[:2], POSITIVE])


def test_there_is_none_where_there_is_a_kernel(backend: Any) -> None:
    for base in ("Functional.matmul", "Mint.add", "Primitive.m.MatMul", "Functional.nowhere"):
        assert backend.adapter.execution.reference_function(base) is None
    for name in ("conv2d", "conv1d", "conv3d", "batch_norm", "relu6"):
        assert hasattr(ops, name), "and a name that is listed exists"
