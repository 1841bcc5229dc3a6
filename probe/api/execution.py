"""Which adapter runs the calls of a dump, by the framework that the dump names."""

from __future__ import annotations

from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter

_BACKENDS = {"pytorch": "torch", "mindspore": "mindspore", "mindtorch": "msadapter"}


def load(framework: str) -> FrameworkAdapter:
    """The adapter of ``pytorch``, ``mindspore`` or ``mindtorch``.

    Raises:
        MissingDependency: the framework is not installed.
    """
    return loader.load(_BACKENDS[framework])
