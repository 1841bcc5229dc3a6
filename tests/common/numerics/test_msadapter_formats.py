"""Every dtype that mindtorch has under a name of torch has a line in the table."""

from __future__ import annotations

from typing import Any

import mindtorch
import torch
from mindtorch import _dtype

from probe.backends.mindspore import statistics
from probe.common.numerics.formats import format_of

OF_NUMBERS = ("Int", "UInt", "Float", "BFloat", "Complex", "Bool", "String")
"""The classes of the types that tensors have; tuples, functions and the like are no types of tensors."""
ABSTRACT = ("int_", "uint", "float_")
"""MindSpore's annotations of no width, which are no types of tensors."""


def of_mindtorch() -> dict[str, Any]:
    found = {name: each for name, each in vars(_dtype).items() if type(each).__name__ in OF_NUMBERS}
    return {name: each for name, each in found.items() if name not in ABSTRACT}


def test_every_dtype_has_its_line() -> None:
    assert torch.float32 is mindtorch.float32
    found = of_mindtorch()
    assert {"float16", "float32", "int64", "bool", "complex64"} <= found.keys()
    for name, dtype in found.items():
        line = statistics.FORMATS.get(dtype)
        assert line is not None, f"probe/common/numerics/formats.py has no line for {name}"
        # mindtorch replaces str() of a dtype, and the dump has MindSpore's name nevertheless.
        assert statistics.dtype_name(dtype) == line.mindspore
        assert format_of(statistics.dtype_name(dtype)) is line is format_of(str(dtype))
