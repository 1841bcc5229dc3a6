"""Drop-in for scripts that import from ``msprobe.pytorch``."""

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

__all__ = [
    "PrecisionChecker",
    "PrecisionDebugger",
    "PtdbgDispatch",
    "TrainerMon",
    "module_dump",
    "module_dump_end",
    "online_check",
    "random_save",
    "save",
    "seed_all",
]
