"""Drop-in for scripts that import from ``msprobe.pytorch``."""

from probe.api.pytorch import PrecisionDebugger, module_dump, module_dump_end, random_save, save, seed_all

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end", "random_save", "save", "seed_all"]
