"""Callbacks that make ``mindspore.train.Model.train`` collect step by step."""

from __future__ import annotations

from typing import Any

from mindspore.train import Callback

from probe.common.errors import MsprobeException


class MsprobeStep(Callback):  # type: ignore[misc]
    """Collect every training step: `start` as it begins, `stop` and `step` as it ends.

    Args:
        debugger: The `PrecisionDebugger`. At levels L0 and mix its ``start(model)`` is called once before the training,
            which says what to collect from.

    Raises:
        MsprobeException: `debugger` is none.

    Example:
        >>> debugger.start(network)
        >>> Model(network, loss, optimizer).train(1, dataset, callbacks=[MsprobeStep(debugger)])
    """

    def __init__(self, debugger: Any) -> None:
        super().__init__()
        if not all(callable(getattr(debugger, call, None)) for call in ("start", "stop", "step")):
            kind = type(debugger).__name__
            raise MsprobeException(f"MsprobeStep: debugger is of type {kind}; allowed: a PrecisionDebugger.")
        self._debugger = debugger

    def on_train_step_begin(self, run_context: Any) -> None:
        self._debugger.start()

    def on_train_step_end(self, run_context: Any) -> None:
        self._debugger.stop()
        self._debugger.step()


class MsprobeInitStep(Callback):  # type: ignore[misc]
    """Number the steps of a training that is resumed as MindSpore does: the first is not 0 but the one it resumes at.

    Example:
        >>> callbacks = [MsprobeInitStep(), MsprobeStep(debugger)]
        >>> Model(network, loss, optimizer).train(10, dataset, callbacks=callbacks, initial_epoch=4)
    """

    debugger: Any = None
    """The `PrecisionDebugger` class; this folder does not know it, so whoever hands out the callback puts it here."""

    def __init__(self) -> None:
        super().__init__()
        self._done = False

    def on_train_epoch_begin(self, run_context: Any) -> None:
        if self._done:
            return
        self._done = True
        counted = run_context.original_args()
        # MindSpore counts the steps of this call of `train` and the epochs of the whole training, and after repairing
        # a fault the steps of the whole training too.
        before = (counted.cur_epoch_num - 1) * counted.batch_num
        self.debugger.session().resume_at(max(before, counted.cur_step_num))
