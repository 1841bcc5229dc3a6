"""The statuses of msProbe: from the colour of a node in its browser page."""

from __future__ import annotations

NO_STATUS, PASS, UNMATCHED, WARNING, ERROR = range(5)
"""In order of severity. `NO_STATUS` is a pair without values."""

STATUSES = ("no status", "pass", "unmatched", "warning", "error")
"""Their names."""
