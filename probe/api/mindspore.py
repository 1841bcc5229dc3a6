"""The names MindSpore and MSAdapter users import.

Which of the two it is shows in the torch that is imported when a call needs to know it, see `probe.backends.loader`.
What has to be a thing of MindSpore's own, a callback or a function that its compiler can read, is made when it is asked
for, so that importing the other names does not import MindSpore.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from probe.api import debugger, randomness
from probe.backends import loader
from probe.common import log

if TYPE_CHECKING:
    from probe.api.monitoring.first import TrainerMon as TrainerMon
    from probe.runtime_checks.online_check import OnlineCheck
    from probe.runtime_checks.precision_checker import PrecisionChecker as Checker

BACKEND = "mindspore"


class PrecisionDebugger(debugger.PrecisionDebugger):
    __doc__ = debugger.PrecisionDebugger.__doc__

    backend = BACKEND

    @classmethod
    def start(cls, model: Any = None, token_range: Sequence[int] | None = None, rank_id: int | None = None) -> None:
        """Collect from here on, if the current step and rank are wanted.

        Args:
            model: The cell or module, or a list or tuple of them, to collect from; needed at levels L0 and mix, and at
                L1 for the primitives that its cells hold. Where it is left out, the one given last.
            token_range: ``[first, last]``: only these forward passes of `model`, counted from 0, both included.
            rank_id: The rank to use in folder names; otherwise that of MindSpore's communication.

        Raises:
            MsprobeException: there is no model where one is needed; or MindSpore is in graph mode.
        """
        is_scheduler = os.environ.get("MS_ROLE") == "MS_SCHED"
        if not is_scheduler and cls.session().guard("start()", cls._collects_calls):
            cls.session().guard("start()", cls._start, model, token_range, rank_id)
        # Otherwise msrun's scheduler, which runs the script as well, has no rank and trains nothing.

    @classmethod
    def _start(cls, model: Any, token_range: Sequence[int] | None, rank_id: int | None) -> None:
        session = cls.session()
        loader.serve(BACKEND).hooks.check_mode()
        if cls._instance is not None and cls._instance._served_by != loader.detect(BACKEND):
            log.warning(
                "torch was imported after the PrecisionDebugger was made, so MindSpore's cells and functions are "
                "collected; import torch first.",
                once="torch-late",
            )
        if model is None:
            if session.active:
                return  # a callback that starts every step, after the model was given before the first
            model = cls._model_given_last()
        session.start(model, token_range, rank_id)
        cls._remember(model)


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False) -> None:
    """Make a run repeatable; see `probe.api.randomness.seed_all`."""
    randomness.seed_all(loader.serve(BACKEND).randomness, seed, mode, rm_dropout, is_enhanced)


def random_save(output_path: str = "./output") -> None:
    """Write down every place that draws random numbers; see `probe.api.randomness.random_save`."""
    adapter = loader.serve(BACKEND)
    calls = [*adapter.randomness.random_calls(), *adapter.randomness.dropping_calls()]
    randomness.random_save(calls, adapter.rank, output_path)


def module_dump(module: Any, module_name: Any = None, *, dump_name: Any = None) -> None:
    """Record `module` itself under ``module_name``, and no APIs, until `module_dump_end`.

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
    """Counterpart of ``msprobe.pytorch.online_check``; entering the block raises, since no operator is seen."""
    from probe.api import replaying

    return replaying.online_check(BACKEND, dump_path, api_list, every, most_elements, share)


def PrecisionChecker(backend: str | Callable[..., Any] = "aot_eager", *_: Any, **__: Any) -> Checker:
    """Refuse the call: MindSpore has no ``torch.compile``.

    Raises:
        MsprobeException: always.
    """
    from probe.api import replaying

    return replaying.precision_checker(BACKEND, backend, 0.0, False, "", None)


_SINGLE_POINTS = ("save", "save_grad", "step")
_CALLBACKS = ("MsprobeStep", "MsprobeInitStep")


def __getattr__(name: str) -> Any:
    if name == "TrainerMon":
        # Whoever only collects waits for no monitor.
        from probe.api.monitoring.first import monitor_of

        return monitor_of(BACKEND, __name__)
    if name in _SINGLE_POINTS:
        return getattr(loader.room(BACKEND, "hooks.single_point_save"), name)
    if name in _CALLBACKS:
        callbacks = loader.room(BACKEND, "hooks.callbacks")
        callbacks.MsprobeInitStep.debugger = PrecisionDebugger
        return getattr(callbacks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
