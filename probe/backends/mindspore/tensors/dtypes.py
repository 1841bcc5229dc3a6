"""Names of MindSpore's dtypes: those of a dump, and the plain ones that all frameworks share."""

from __future__ import annotations

from typing import Any

import mindspore as ms

from probe.common.numerics.formats import TABLE, Format

_ATTRIBUTES = {"bool": "bool_", "int4": "qint4x2"}
"""Dtypes that MindSpore has under another name."""


def _attribute(line: Format) -> str:
    return _ATTRIBUTES.get(line.name, line.name)


# str() of a type gives the names of dumps in plain MindSpore, but mindtorch replaces it.
FORMATS: dict[Any, Format] = {
    getattr(ms, _attribute(line)): line for line in TABLE if line.mindspore and hasattr(ms, _attribute(line))
}
"""The format of each dtype that this MindSpore has."""
_BY_DUMPED: dict[str, Any] = {line.mindspore: dtype for dtype, line in FORMATS.items()}
_BY_PLAIN: dict[str, Any] = {line.name: dtype for dtype, line in FORMATS.items()}


def dtype_name(dtype: Any) -> str:
    """``Float32`` for ``mindspore.float32``, under every MindSpore and mindtorch."""
    found = FORMATS.get(dtype)
    return str(dtype).rpartition(".")[2] if found is None else found.mindspore


def dumped_dtype(name: str) -> Any | None:
    """The dtype that a dump calls `name`; ``None`` for no dtype of a tensor."""
    return _BY_DUMPED.get(name)


def plain_name(dtype: Any) -> str:
    """``float32`` for ``mindspore.float32``, ``bool`` for ``mindspore.bool_``."""
    found = FORMATS.get(dtype)
    return str(dtype).rpartition(".")[2].lower() if found is None else found.name


def plain_dtype(name: str) -> Any | None:
    """The dtype of a plain name; ``None`` for one that this MindSpore does not have."""
    return _BY_PLAIN.get(name)
