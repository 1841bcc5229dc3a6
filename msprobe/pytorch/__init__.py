"""Drop-in for scripts that import from ``msprobe.pytorch``."""

import importlib

from probe.api.older import compare_distributed
from probe.api.pytorch import (
    PrecisionChecker,
    PrecisionDebugger,
    PtdbgDispatch,
    module_dump,
    module_dump_end,
    online_check,
    random_save,
    save,
    seed_all,
)
from probe.api.pytorch import __getattr__ as __getattr__

# A path of `probe.api.older`, which can be called.
compare = importlib.import_module(f"{__name__}.compare")

__all__ = [
    "PrecisionChecker",
    "PrecisionDebugger",
    "PtdbgDispatch",
    "TrainerMon",
    "compare",
    "compare_distributed",
    "module_dump",
    "module_dump_end",
    "online_check",
    "random_save",
    "save",
    "seed_all",
]
