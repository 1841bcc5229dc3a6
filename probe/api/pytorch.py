"""The names PyTorch users import.

In a program whose torch is an MSAdapter they work as those of ``msprobe.mindspore``, so a script keeps its imports when
it is moved there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from probe.api import debugger, randomness
from probe.backends import loader

if TYPE_CHECKING:
    from probe.api.monitoring.first import TrainerMon as TrainerMon
    from probe.runtime_checks.online_check import OnlineCheck
    from probe.runtime_checks.precision_checker import PrecisionChecker as Checker

BACKEND = "torch"


class PrecisionDebugger(debugger.PrecisionDebugger):
    __doc__ = debugger.PrecisionDebugger.__doc__

    backend = BACKEND


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> None:
    """Make a run repeatable; see `probe.api.randomness.seed_all`."""
    randomness.seed_all(loader.serve(BACKEND).randomness, seed, mode, rm_dropout, is_enhanced)


def random_save(output_path: str = "./output") -> None:
    """Write down every place that draws random numbers; see `probe.api.randomness.random_save`."""
    adapter = loader.serve(BACKEND)
    calls = [*adapter.randomness.random_calls(), *adapter.randomness.dropping_calls()]
    randomness.random_save(calls, adapter.rank, output_path)


def save(variable: Any, name: str, save_backward: bool = True) -> None:
    """Record one value at level debug; see `PrecisionDebugger.save`."""
    PrecisionDebugger.save(variable, name, save_backward)


def module_dump(module: Any, module_name: Any = None, *, dump_name: Any = None) -> None:
    """Record `module` itself as ``Module.<module_name>.<Class>``, and no APIs, until `module_dump_end`.

    `dump_name` is another name of `module_name`.
    """
    PrecisionDebugger.session().module_dump(module, dump_name if module_name is None else module_name)


def module_dump_end() -> None:
    """Record APIs again."""
    PrecisionDebugger.session().module_dump_end()


def online_check(
    dump_path: str | None = None,
    *,
    api_list: Sequence[str] = (),
    every: int = 1,
    most_elements: int = 1 << 22,
    share: float | None = None,
) -> OnlineCheck:
    """Check every operation inside of a ``with`` block; see `probe.api.replaying.online_check`."""
    from probe.api import replaying

    return replaying.online_check(BACKEND, dump_path, api_list, every, most_elements, share)


def PtdbgDispatch(
    dump_mode: str = "auto",
    api_list: Sequence[str] | None = None,
    debug: bool = False,
    dump_path: str | None = None,
    tag: str | None = None,
    process_num: int = 0,
) -> OnlineCheck:
    """`online_check` under the name and with the arguments of earlier tools.

    Args:
        dump_mode: ``list`` checks the operators of `api_list` only; every other mode checks all of them.
        debug, tag, process_num: Accepted and without effect.
    """
    return online_check(dump_path, api_list=(api_list or ()) if dump_mode == "list" else ())


def PrecisionChecker(
    backend: str | Callable[..., Any] = "aot_eager",
    threshold: float = 1e-4,
    dump_graphs: bool = False,
    graph_dir: str = "./graph_dump",
    cast_dtype: Any = None,
    capture_input: bool = True,
    single_pass: bool = True,
) -> Checker:
    """Check modules under ``torch.compile`` against their eager form; see `probe.api.replaying.precision_checker`.

    Args:
        capture_input, single_pass: Accepted and without effect: both forms always get the inputs of one call.
    """
    from probe.api import replaying

    return replaying.precision_checker(BACKEND, backend, threshold, dump_graphs, graph_dir, cast_dtype)


_CALLBACKS = {
    "MsprobeLightningCallback": "integrations.lightning",
    "MsprobeTrainerCallback": "integrations.transformers",
}
"""Callbacks of training libraries: each is a subclass of its library's own class, and made when it is asked for."""


def __getattr__(name: str) -> Any:
    if name == "TrainerMon":
        # Whoever only collects waits for no monitor.
        from probe.api.monitoring.first import monitor_of

        return monitor_of(BACKEND, __name__)
    if name in _CALLBACKS:
        return getattr(loader.room(BACKEND, _CALLBACKS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
