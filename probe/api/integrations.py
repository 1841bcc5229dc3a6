"""Callbacks for the training libraries of PyTorch users.

Each is a subclass of its library's own class, and made when it is asked for, so that nobody needs more than one of the
libraries.
"""

from __future__ import annotations

from typing import Any

from probe.backends import loader

BACKEND = "torch"
_ROOMS = {
    "MsprobeLightningCallback": "integrations.lightning",
    "MsprobeTrainerCallback": "integrations.transformers",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(loader.room(BACKEND, _ROOMS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
