"""Drop-in for scripts that import from ``msprobe.pytorch``."""

from probe.api.older.functions import compare_distributed
from probe.api.pytorch import (
    PrecisionChecker,
    PrecisionDebugger,
    PtdbgDispatch,
    TrainerMon,
    module_dump,
    module_dump_end,
    online_check,
    random_save,
    save,
    seed_all,
)

# `compare` is a path of `probe.api.older.paths`, which can be called.
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
