"""Keys that the objects of several commands have."""

from __future__ import annotations

from typing import Union

from typing_extensions import TypedDict

Statistic = Union[float, str, None]
"""A number; ``NaN``, ``Infinity`` and ``-Infinity`` are texts."""


class Trouble(TypedDict):
    """The keys that come first in each object, and all that an object has if there is no answer."""

    version: int
    """The version of the keys; it increases if a key changes its meaning or is removed."""
    command: str
    """The command, such as ``compare``."""
    status: int
    """The exit status."""
    errors: list[str]
    """The messages on standard error; empty for the statuses 0 and 1."""


class Files(Trouble):
    """The files that were written."""

    files: list[str]


class File(Trouble):
    """The file that was written."""

    file: str
