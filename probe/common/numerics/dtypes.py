"""Which types the reference tool compares at all, and which values are names of devices."""

from __future__ import annotations

from functools import cache

# Releases of the reference tool match these, so that a run in half precision can be held against one in full.
_FLOATS = (
    frozenset(("Float16", "Float32", "Float64", "BFloat16")),
    frozenset(("torch.float16", "torch.float32", "torch.float64", "torch.bfloat16")),
)
_CLASSES = ("complex", "float", "bool", "int")


@cache
def may_match(target: str | None, golden: str | None, across_frameworks: bool) -> bool:
    """Whether the reference tool compares values of these types at all."""
    if target == golden:
        return True
    if target is None or golden is None:
        return False
    if across_frameworks:
        return _class(target) == _class(golden)
    return any(target in names and golden in names for names in _FLOATS)


def _class(dtype: str) -> str:
    lower = dtype.lower()
    return next((name for name in _CLASSES if name in lower), lower)


_DEVICES = frozenset(("npu", "cuda", "cpu", "gpu", "ascend"))


def is_device(value: object) -> bool:
    """Whether a plain value names a device, as ``npu:0`` and ``cuda`` do."""
    return isinstance(value, str) and value.split(":")[0].lower() in _DEVICES
