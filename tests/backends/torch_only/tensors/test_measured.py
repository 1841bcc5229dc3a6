"""Rows of a monitor: a tensor that the compiled call measures has the values, to the last bit, that Python computes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from probe.backends.torch import trend_measuring
from probe.backends.torch.tensors import plain_tensors
from probe.backends.torch.trend_measuring import TorchMeasurer

pytestmark = pytest.mark.skipif(plain_tensors.describers is None, reason="the compiled part is not built")
SIX = ("min", "max", "mean", "norm", "zeros", "nans")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def tensors(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    torch.manual_seed(0)
    for shape in ((), (0,), (1,), (33, 17, 3), (70_000,)):
        x = torch.randn(shape) * 3
        yield from (x.to(dtype), (x * (torch.rand(shape) > 0.5)).to(dtype), (x * 1e-8).to(dtype), (x * 0).to(dtype))
        for value in (math.nan, math.inf, -math.inf) if dtype.is_floating_point and x.numel() else ():
            odd = x.to(dtype)
            odd.view(-1)[0] = value
            yield odd
    x = torch.randn(64, 48).to(dtype)
    yield from (x.t(), x[::2, 1:], x[:, :1].expand(64, 48), x[0].expand(64, 48))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_compiled_row_is_that_of_python(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    for ops, eps in ((SIX, 1e-8), (SIX, 0.5), (("zeros", "nans"), 0.0), (("norm",), 1e-8)):
        compiled = TorchMeasurer(ops, eps)
        with monkeypatch.context() as without:
            without.setattr(plain_tensors, "row_maker", lambda ops, eps: None)
            python = TorchMeasurer(ops, eps)
        for tensor in tensors(dtype):
            assert repr(compiled.measure(tensor)) == repr(python.measure(tensor)), (ops, eps, tensor)
        maker = plain_tensors.row_maker(ops, eps)
        assert maker is not None
        made += sum(maker(tensor) is not None for tensor in tensors(dtype))
    assert (made > 0) == (dtype is not torch.bool)


def test_the_compiled_agreement_of_signs_is_that_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    measurer = TorchMeasurer(("mean",), 1e-8)
    pairs = [
        (x, y) for x in tensors(torch.float32) for y in tensors(torch.float32) if x.shape == y.shape and x.numel() > 1
    ]
    compiled = [repr(measurer.agreement(*pair)) for pair in pairs]
    monkeypatch.setattr(trend_measuring, "_PAIRS", None)
    assert compiled == [repr(measurer.agreement(*pair)) for pair in pairs]
