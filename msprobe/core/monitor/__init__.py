"""Drop-in for scripts that import from ``msprobe.core.monitor``."""
