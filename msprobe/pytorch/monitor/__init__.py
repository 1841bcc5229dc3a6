"""Drop-in for scripts that import from ``msprobe.pytorch.monitor``."""
