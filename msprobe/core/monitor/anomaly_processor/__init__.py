"""``python -m msprobe.core.monitor.anomaly_processor``."""

from probe.api.commands.monitor import main

__all__ = ["main"]
