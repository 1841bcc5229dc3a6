"""Drop-in for scripts that import from ``msprobe.mindspore``, under MindSpore and under MSAdapter."""

import importlib

from probe.api.mindspore import (
    PrecisionChecker,
    PrecisionDebugger,
    module_dump,
    module_dump_end,
    online_check,
    random_save,
    seed_all,
)
from probe.api.mindspore import __getattr__ as __getattr__
from probe.api.older import compare_distributed

# A path of `probe.api.older`, which can be called.
compare = importlib.import_module(f"{__name__}.compare")

__all__ = [
    "MsprobeInitStep",
    "MsprobeStep",
    "PrecisionChecker",
    "PrecisionDebugger",
    "TrainerMon",
    "compare",
    "compare_distributed",
    "module_dump",
    "module_dump_end",
    "online_check",
    "random_save",
    "save",
    "save_grad",
    "seed_all",
    "step",
]
