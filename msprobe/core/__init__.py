"""Drop-in for scripts that import from ``msprobe.core``."""

from probe.api.single_save import SingleComparator, SingleSave

__all__ = ["SingleComparator", "SingleSave"]
