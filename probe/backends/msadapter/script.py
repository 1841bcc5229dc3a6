"""No stand-alone scripts: what makes ``torch`` of mindtorch has to run first, and differs from program to program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.backends.mindspore.execution.script import SUFFIX, content, inline, loaded, plain, script

__all__ = ["SUFFIX", "content", "inline", "loaded", "plain", "script", "spelled"]


def spelled(base: str, attributes: Mapping[str, Any] | None = None) -> str | None:
    """No name: see above."""
    return None
