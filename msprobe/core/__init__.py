"""Drop-in for scripts that import from ``msprobe.core``."""

from probe.api.rollouts.single_comparator import SingleComparator
from probe.api.rollouts.single_save import SingleSave

__all__ = ["SingleComparator", "SingleSave"]
