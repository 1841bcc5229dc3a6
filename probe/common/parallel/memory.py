"""The memory of this machine."""

from __future__ import annotations

import os
from contextlib import suppress

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The limit of a container, in each version of the kernel's interface."""
_UNKNOWN = 8 << 30
"""Bytes that are taken for a machine which does not say its own."""


def of_machine() -> int:
    """Bytes that this machine has, or that its container may use."""
    found = [_UNKNOWN]
    if hasattr(os, "sysconf"):
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        # There is none outside of a container, and "max" where it is not limited.
        with suppress(OSError, ValueError), open(path, encoding="ascii") as stream:
            found.append(int(stream.read()))
    return min(found)
