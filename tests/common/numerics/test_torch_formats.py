"""Every dtype of torch has a line in the table, with the numbers that torch says it has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe.common.numerics.formats import Format, Kind, format_of
from probe.common.numerics.rounding import rounded_to

DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)
KINDS = {
    Kind.FLOAT: lambda dtype: dtype.is_floating_point,
    Kind.COMPLEX: lambda dtype: dtype.is_complex,
    Kind.INTEGER: lambda dtype: str(dtype).startswith(("torch.int", "torch.uint")),
    Kind.BOOLEAN: lambda dtype: dtype is torch.bool,
    Kind.QUANTISED: lambda dtype: str(dtype).startswith(("torch.qint", "torch.quint")),
    Kind.BITS: lambda dtype: str(dtype).startswith("torch.bits"),
    Kind.TEXT: lambda dtype: False,
}
SHORT_FLOATS = [each for each in DTYPES if each.is_floating_point and each.itemsize == 1 and "x2" not in str(each)]


def line_of(dtype: torch.dtype) -> Format:
    line = format_of(str(dtype))
    assert line is not None, f"probe/common/numerics/formats.py has no line for {dtype}"
    return line


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_its_line(dtype: torch.dtype) -> None:
    line = line_of(dtype)
    assert str(dtype) == f"torch.{line.name}"
    assert [kind for kind, holds in KINDS.items() if holds(dtype)] == [line.kind]
    # Integers of less than 8 bits are held in a byte each.
    held = line.bits * line.packed
    assert held == dtype.itemsize * 8 or (line.kind is Kind.INTEGER and held < 8 and dtype.itemsize == 1)


# torch has no numbers of the packed one.
ROUNDED = [each for each in DTYPES if (each.is_floating_point or each.is_complex) and "x2" not in str(each)]


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_floating_point_formats_are_those_of_torch(dtype: torch.dtype) -> None:
    line = line_of(dtype)
    known = torch.finfo(dtype)
    assert (line.largest, line.lowest, line.smallest_normal) == (known.max, known.min, known.tiny)
    # torch says of float8_e5m2fnuz that it has as many digits as float8_e4m3fnuz; its own conversion says 3.
    if dtype is not getattr(torch, "float8_e5m2fnuz", None):
        assert line.unit == known.eps / 2


@pytest.mark.parametrize("dtype", SHORT_FLOATS, ids=str)
def test_all_numbers_of_eight_bits_are_those_of_torch(dtype: torch.dtype) -> None:
    line = line_of(dtype)
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float64).numpy()
    finite = np.unique(numbers[np.isfinite(numbers)])
    above = finite[finite > 0]
    assert (line.largest, line.lowest, line.smallest_subnormal) == (finite[-1], finite[0], above[0])
    assert line.unit == (above[above > 1][0] - 1) / 2
    assert (line.has_infinity, line.has_nan) == (np.isinf(numbers).any(), np.isnan(numbers).any())
    ties = (above[1:] + above[:-1]) / 2
    tried = np.concatenate([finite, ties, ties * (1 + 2.0**-10), ties * (1 - 2.0**-10)])
    # Below, float32 is subnormal, and torch rounds those to scales in its own way.
    tried = tried[np.abs(tried) >= 2.0**-126]
    of_torch = torch.from_numpy(tried).to(torch.float32).to(dtype).to(torch.float64).numpy()
    assert np.array_equal(rounded_to(tried.astype(np.float32).astype(np.float64), line), of_torch)
