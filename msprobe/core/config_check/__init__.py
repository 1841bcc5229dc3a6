"""``from msprobe.core.config_check import ConfigChecker``."""

from probe.api.config_checker import ConfigChecker

__all__ = ["ConfigChecker"]
