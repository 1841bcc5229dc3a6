"""Plain values that are names of devices."""

from __future__ import annotations

_DEVICES = frozenset(("npu", "cuda", "cpu", "gpu", "ascend"))


def is_device(value: object) -> bool:
    """True if a plain value names a device, as ``npu:0`` and ``cuda`` do."""
    return isinstance(value, str) and value.split(":")[0].lower() in _DEVICES
