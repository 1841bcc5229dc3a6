"""The class of an API holds for its operator and in-place forms, and for the names of every framework."""

from __future__ import annotations

import pytest

from probe.msprobe_rules.precheck.api_classes import api_class, ratio_limits


@pytest.mark.parametrize(
    ("expected", "names"),
    [
        ("absolute_threshold", ["Torch.mul", "Tensor.__mul__", "Tensor.__imul__", "Tensor.__rmul__", "Tensor.mul_"]),
        ("absolute_threshold", ["Tensor.__truediv__", "Tensor.__itruediv__", "Torch.rsub", "Tensor.__rsub__"]),
        ("absolute_threshold", ["Mint.add", "Primitive.Add", "Functional.leaky_relu_", "Torch.rsqrt"]),
        ("ulp", ["Torch.matmul", "Tensor.__matmul__", "Primitive.MatMul", "MintFunctional.linear"]),
        ("dual_1000", ["Functional.conv1d", "Functional.conv2d", "Primitive.Conv2D"]),
        ("binary", ["Torch.sort", "Tensor.masked_fill_", "Tensor.fill_", "Torch.logical_xor", "Tensor.__and__"]),
        ("binary", ["Primitive.LogicalNot", "Tensor.__eq__", "Functional.max_pool3d", "Tensor.__neg__"]),
        ("benchmark", ["Functional.silu", "Functional.conv3d", "Torch.addcmul", "Functional.gelu", "Tensor.__pow__"]),
        ("benchmark", ["Functional.softmax", "Torch.sum", "Tensor.__index__", "Torch.multinomial"]),
    ],
)
def test_a_name_has_its_class(expected: str, names: list[str]) -> None:
    assert {name: api_class(name) for name in names} == dict.fromkeys(names, expected)


def test_limits_go_by_level() -> None:
    assert ratio_limits("Functional.silu")["max_rel"] == 10
    assert ratio_limits("Functional.embedding")["max_rel"] == 5
    assert ratio_limits("Torch.addmm")["rmse"] == 1.2


def test_the_release_does_not_know_gelu_by_its_name() -> None:
    assert ratio_limits("Functional.gelu", as_written=True)["max_rel"] == 10
    assert ratio_limits("Functional.gelu")["max_rel"] == 2
