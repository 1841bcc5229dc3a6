"""The names below ``msprobe.core``."""
