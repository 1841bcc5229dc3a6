"""A callback that makes ``transformers.Trainer`` collect step by step."""

from __future__ import annotations

from typing import Any

from probe.backends.torch.integrations.steps import LibrarySteps
from probe.common import log
from probe.common.errors import MissingDependency

try:
    from transformers import TrainerCallback
except ImportError as error:
    why = f"MsprobeTrainerCallback needs transformers, which cannot be imported ({error})"
    raise MissingDependency(f"{why}; run: pip install transformers accelerate.") from error


class MsprobeTrainerCallback(TrainerCallback):  # type: ignore[misc]
    """Collect every training step of a ``transformers.Trainer``, and nothing of its evaluations and predictions.

    A step is one update of the parameters, with all the batches that are accumulated for it. The model is the one that
    the Trainer was given, not what it is wrapped in, so the names are the same with one process and with several. A
    training that is resumed from a checkpoint goes on with the numbers of its steps.

    Args:
        debugger: The `PrecisionDebugger`, which says what to collect, and of which steps. The callback makes its calls
            of ``start``, ``stop`` and ``step``.

    Raises:
        MsprobeException: `debugger` is none.

    Example:
        >>> debugger = PrecisionDebugger(dump_path="./dump", level="L0", step=[0, 1])
        >>> Trainer(model, arguments, train_dataset=data, callbacks=[MsprobeTrainerCallback(debugger)]).train()
    """

    def __init__(self, debugger: Any) -> None:
        self._steps = LibrarySteps(type(self).__name__, debugger)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.torch_compile:
            log.warning(
                "torch_compile is on: the modules of the model run inside of compiled code and have no records. Leave "
                'it out, or call torch.compiler.set_stance("force_eager") before the training.',
                once="trainer-torch-compile",
            )
        self._steps.begin_training(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.collect(kwargs["model"])

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Other callbacks may evaluate or generate in `on_step_end`, before this one is told.
        self._steps.pause()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.end()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # An epoch can end before the last batches make a whole step; an evaluation comes next.
        self._steps.pause()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.end()
