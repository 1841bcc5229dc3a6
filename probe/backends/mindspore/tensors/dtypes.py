"""Names of MindSpore's dtypes: those of a dump, and the plain ones that all frameworks share."""

from __future__ import annotations

from typing import Any

import mindspore as ms

# str() of a type gives these names in plain MindSpore, but mindtorch replaces it.
_NAMES = {
    "float16": "Float16", "bfloat16": "BFloat16", "float32": "Float32", "float64": "Float64",
    "int8": "Int8", "int16": "Int16", "int32": "Int32", "int64": "Int64",
    "uint8": "UInt8", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
    "bool_": "Bool", "complex64": "Complex64", "complex128": "Complex128",
    "float8_e4m3fn": "Float8E4M3FN", "float8_e5m2": "Float8E5M2", "hifloat8": "HiFloat8",
}  # fmt: skip
_DUMPED: dict[Any, str] = {getattr(ms, name): text for name, text in _NAMES.items() if hasattr(ms, name)}
_BY_DUMPED: dict[str, Any] = {text: dtype for dtype, text in _DUMPED.items()}
_PLAIN: dict[Any, str] = {getattr(ms, name): name.rstrip("_") for name in _NAMES if hasattr(ms, name)}
_BY_PLAIN: dict[str, Any] = {name: dtype for dtype, name in _PLAIN.items()}


def dtype_name(dtype: Any) -> str:
    """``Float32`` for ``mindspore.float32``, under every MindSpore and mindtorch."""
    return _DUMPED.get(dtype) or str(dtype).rpartition(".")[2]


def dumped_dtype(name: str) -> Any | None:
    """The dtype that a dump calls `name`; ``None`` for no dtype of a tensor."""
    return _BY_DUMPED.get(name)


def plain_name(dtype: Any) -> str:
    """``float32`` for ``mindspore.float32``, ``bool`` for ``mindspore.bool_``."""
    return _PLAIN.get(dtype) or str(dtype).rpartition(".")[2].lower()


def plain_dtype(name: str) -> Any | None:
    """The dtype of a plain name; ``None`` for one that this MindSpore does not have."""
    return _BY_PLAIN.get(name)
