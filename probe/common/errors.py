"""The errors of this package.

    MsprobeException            anything a user can put right; base of the rest
    ├── ScopeException          ``scope`` names something the level cannot collect
    ├── FileCheckException      a path is missing, is a link or has the wrong kind
    │   └── ConfigSyntaxError   a configuration file is not valid JSON
    ├── MissingDependency       an optional package is needed and not installed
    ├── FrameworkError          a framework is installed, and the tool cannot work with it
    └── DumpFormatError         a file of a dump cannot be read

The names are those that scripts written for msProbe already catch.
"""

from __future__ import annotations

import traceback

from probe.common.harmless_text import printable


class MsprobeException(Exception):
    """A mistake the user can put right; the message says how, in one line whatever the names in it hold."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ScopeException(MsprobeException):
    """``scope`` is not a pair of names that this level can collect."""


class FileCheckException(MsprobeException):
    """A path is missing, is a symbolic link, or is not what it should be."""


class ConfigSyntaxError(FileCheckException, RuntimeError):
    """A configuration file cannot be parsed."""


class MissingDependency(MsprobeException, ImportError):
    """An optional package is needed; the message names the extra to install."""


class FrameworkError(MsprobeException):
    """A framework is installed, and the tool cannot work with it; the message has its version and those tested."""


class DumpFormatError(MsprobeException, ValueError):
    """A journal or a file of a dump is truncated, corrupted or of another version."""


def failure_text(error: BaseException) -> str:
    """An error in one line, with the line of code that raised it.

    Example:
        ``AttributeError: module 'torch' has no attribute 'xpu' (probe/backends/torch/guards.py, line 12)``
    """
    # A `__getattr__` that raises only says what the line before asked for.
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.name != "__getattr__"]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return printable(f"{type(error).__name__}: {error}{where}")
