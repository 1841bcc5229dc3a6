"""``python -m msprobe.core.monitor.anomaly_processor``."""

from probe.api.commands.watching.anomaly_processor import main

__all__ = ["main"]
