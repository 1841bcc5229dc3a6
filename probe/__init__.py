"""A precision debugger for deep learning. Importing it imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from probe._version import __version__

if TYPE_CHECKING:
    from probe.compare.reading import Dump as Dump
    from probe.compare.reading import read as read

__all__ = ["Dump", "__version__", "read"]


def __getattr__(name: str) -> Any:
    # Reading needs numpy and msgspec, which a script that only collects should not wait for.
    if name in ("read", "Dump"):
        from probe.compare import reading

        return getattr(reading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
