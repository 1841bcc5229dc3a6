"""The rich console of a terminal, where there is one."""

from __future__ import annotations

from typing import Any, TextIO


def console_of(stream: TextIO) -> Any:
    """A rich console, or ``None`` where there is no terminal or rich is not installed."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)
