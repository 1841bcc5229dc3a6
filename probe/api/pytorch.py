"""The names PyTorch users import.

In a program whose torch is an MSAdapter they work as those of ``msprobe.mindspore``, so a script keeps its imports when
it is moved there.
"""

from __future__ import annotations

from typing import Any

from probe.api import debugger, randomness
from probe.backends import loader

BACKEND = "torch"


class PrecisionDebugger(debugger.PrecisionDebugger):
    __doc__ = debugger.PrecisionDebugger.__doc__

    backend = BACKEND


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> None:
    """Make a run repeatable; see `probe.api.randomness.seed_all`."""
    randomness.seed_all(loader.serve(BACKEND), seed, mode, rm_dropout, is_enhanced)


def random_save(output_path: str = "./output") -> None:
    """Write down every place that draws random numbers; see `probe.api.randomness.random_save`."""
    randomness.random_save(loader.serve(BACKEND), output_path)


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Record one value at level debug; see `PrecisionDebugger.save`."""
    PrecisionDebugger.save(variable, name, save_backward)


def module_dump(module: Any, dump_name: str) -> None:
    """Record `module` itself as ``Module.<dump_name>.<Class>``, and no APIs, until `module_dump_end`."""
    PrecisionDebugger.session().module_dump(module, dump_name)


def module_dump_end() -> None:
    """Record APIs again."""
    PrecisionDebugger.session().module_dump_end()
