"""Drop-in for scripts that import from ``msprobe.mindspore``, under MindSpore and under MSAdapter."""

from probe.api.mindspore import (
    PrecisionChecker,
    PrecisionDebugger,
    TrainerMon,
    module_dump,
    module_dump_end,
    online_check,
    random_save,
    seed_all,
)
from probe.api.mindspore import __getattr__ as __getattr__

__all__ = [
    "MsprobeInitStep",
    "MsprobeStep",
    "PrecisionChecker",
    "PrecisionDebugger",
    "TrainerMon",
    "module_dump",
    "module_dump_end",
    "online_check",
    "random_save",
    "save",
    "save_grad",
    "seed_all",
    "step",
]
