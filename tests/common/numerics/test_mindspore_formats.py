"""Every dtype that a tensor of MindSpore can have has a line in the table, under both of its names."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore.common import dtype as ms_dtypes

from probe.backends.mindspore import statistics
from probe.common.numerics.formats import Kind, format_of

OF_NUMBERS = ("Int", "UInt", "Float", "BFloat", "Complex", "Bool", "String")
"""The classes of the types that tensors have; tuples, functions and the like are no types of tensors."""
ABSTRACT = ("int_", "uint", "float_")
"""Of no width: annotations, and no types of tensors."""


def of_tensors() -> dict[str, Any]:
    found = {name: getattr(ms_dtypes, name) for name in dir(ms_dtypes) if name not in ABSTRACT}
    return {name: dtype for name, dtype in found.items() if type(dtype).__name__ in OF_NUMBERS}


def test_every_dtype_has_its_line() -> None:
    found = of_tensors()
    assert {"float16", "bfloat16", "hifloat8", "qint4x2", "bool_", "string", "uint16"} <= found.keys()
    missing = {name for name, dtype in found.items() if dtype not in statistics.FORMATS}
    assert not missing, f"probe/common/numerics/formats.py has no line for {sorted(missing)}"


def test_the_names_of_dumps_and_the_plain_ones_are_those_of_the_line() -> None:
    for dtype in of_tensors().values():
        line = statistics.FORMATS[dtype]
        assert statistics.dtype_name(dtype) == line.mindspore == str(dtype)
        assert format_of(str(dtype)) is line is format_of(repr(dtype))
        assert statistics.plain_name(dtype) == line.name
        assert statistics.dumped_dtype(line.mindspore) == dtype == statistics.plain_dtype(line.name)


def test_numbers_are_those_of_the_numpy_types_that_mindspore_converts_to() -> None:
    seen = set()
    for dtype, line in statistics.FORMATS.items():
        if line.kind not in (Kind.FLOAT, Kind.COMPLEX, Kind.INTEGER) or line.name == "bfloat16" or line.bits < 8:
            continue
        if line.kind is Kind.FLOAT and line.bits == 8:
            continue
        known = np.dtype(ms.dtype_to_nptype(dtype))
        limits: Any = np.iinfo(known) if line.kind is Kind.INTEGER else np.finfo(known)
        assert (line.largest, line.lowest) == (limits.max, limits.min)
        assert known.itemsize * 8 == line.bits
        seen.add(line.name)
    assert len(seen) == 13
