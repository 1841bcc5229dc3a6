"""A precision debugger for deep learning. Importing it imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probe._version import __version__

if TYPE_CHECKING:
    from probe.common.dump.reading.dump import Dump as Dump
    from probe.common.dump.reading.dump import read as read

__all__ = ["Dump", "__version__", "read"]


def __getattr__(name: str) -> Any:
    # Reading needs numpy and msgspec, which a script that only collects should not wait for.
    if name in ("read", "Dump"):
        from probe.common.dump.reading import dump

        return getattr(dump, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
