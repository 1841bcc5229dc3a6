"""Drop-in for scripts that import the second monitor."""

from probe.api.monitoring.second import TrainerMonitorV2

__all__ = ["TrainerMonitorV2"]
