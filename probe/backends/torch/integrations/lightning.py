"""A callback that makes the ``Trainer`` of Lightning collect step by step."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from probe.backends.torch.integrations.steps import LibrarySteps
from probe.common import log
from probe.common.errors import MissingDependency

# Lightning is one library under two names, and `lightning` brings the other one along. A Trainer of either takes
# callbacks of both.
_OTHER_NAME = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules

try:
    if _OTHER_NAME or find_spec("lightning") is None:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
except ImportError as error:
    why = f"MsprobeLightningCallback needs lightning, which cannot be imported ({error})"
    raise MissingDependency(f"{why}; run: pip install lightning.") from error


class MsprobeLightningCallback(Callback):  # type: ignore[misc]
    """Collect every training step of Lightning's ``Trainer.fit``, and nothing of its validations.

    A step ends with the batch in which an optimizer has stepped, by ``trainer.global_step``: it has several batches
    with ``accumulate_grad_batches``, and several optimizers that step in one ``training_step`` make one step. The model
    is the LightningModule, not what the strategy wraps it in, so the names are the same with one process and with
    several. A training that is resumed from a checkpoint begins with the number ``trainer.global_step``.

    Args:
        debugger: The `PrecisionDebugger`, which says what to collect, and of which steps. The callback makes its calls
            of ``start``, ``stop`` and ``step``.

    Raises:
        MsprobeException: `debugger` is none.

    Example:
        >>> debugger = PrecisionDebugger(dump_path="./dump", level="L0", step=[0, 1])
        >>> Trainer(max_epochs=1, callbacks=[MsprobeLightningCallback(debugger)]).fit(module, loader)
    """

    def __init__(self, debugger: Any) -> None:
        super().__init__()
        self._steps = LibrarySteps(type(self).__name__, debugger)
        self._stepped = 0
        """``trainer.global_step`` when the last step ended."""
        self._epoch_began = 0
        """``trainer.global_step`` when the epoch began."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._stepped = trainer.global_step
        self._steps.begin_training(self._stepped)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._epoch_began = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._steps.collect(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._stepped:
            # A validation, and the loading of the next batch, can come between two batches of a step.
            self._steps.pause()
        else:
            self._stepped = trainer.global_step
            self._steps.end()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        # A module that ends the epoch in `on_train_batch_start` leaves a batch that does not end.
        self._steps.pause()
        if trainer.global_step == self._epoch_began:
            log.warning(
                "trainer.global_step did not change in this epoch, so all its batches belong to one step. "
                "Lightning does not count the steps of optimizers that are fetched with use_pl_optimizer=False.",
                once="lightning-no-step",
            )

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._steps.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._steps.end()
