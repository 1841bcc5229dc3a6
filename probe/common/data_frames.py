"""The library for data frames, which is imported where a frame is made."""

from __future__ import annotations

from importlib.util import find_spec

from probe.common.errors import MissingDependency, MsprobeException

FRAME_LIBRARIES = ("polars", "pandas")
"""The libraries that serve; the first that is installed, unless one is named."""


def installed_library(library: str | None) -> str:
    """The name of the library that makes a frame: `library`, or else the first that is installed.

    Raises:
        MsprobeException: there is no such library.
        MissingDependency: it is not installed.
    """
    if library is not None and library not in FRAME_LIBRARIES:
        raise MsprobeException(f"{library!r} is no library for data frames; allowed: {', '.join(FRAME_LIBRARIES)}.")
    wanted = FRAME_LIBRARIES if library is None else (library,)
    for name in wanted:
        if find_spec(name) is not None:
            return name
    raise MissingDependency(f"a data frame needs {' or '.join(wanted)}; run: pip install {wanted[0]}")
