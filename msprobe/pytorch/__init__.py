"""Drop-in for scripts that import from ``msprobe.pytorch``."""

from probe.api.pytorch import (
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
