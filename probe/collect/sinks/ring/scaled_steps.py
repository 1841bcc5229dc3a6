"""Loss scaling: a step whose gradients overflow is skipped and the scale made smaller, which is no fault."""

from __future__ import annotations

from collections import deque

from probe.backends.protocol import ScaledUpdate
from probe.common.config.config import Config

_MOST_UPDATES = 256
"""The largest number of optimizers that one step may have."""


class ScaledSteps:
    """Follows the gradient scalers of a training.

    Args:
        config: Says when skipped steps are too many.
    """

    def __init__(self, config: Config) -> None:
        self._least_scale = config.min_scale
        self._most_skips = config.max_skips
        self._updates: deque[ScaledUpdate] = deque(maxlen=_MOST_UPDATES)
        self._in_a_row = 0
        self.skipped = 0
        """Steps in all."""

    def note(self, update: ScaledUpdate) -> None:
        """A scaler has let an optimizer make its step, or has not."""
        self._updates.append(update)

    def forget(self) -> None:
        """The step that ends now is of no interest."""
        self._updates.clear()

    def skips_expected(self) -> bool:
        """True if the step that ends now is one that a scaler has skipped and may skip; asked once a step."""
        updates = list(self._updates)
        self._updates.clear()
        skipped = [update for update in updates if update.was_skipped()]
        if not skipped:
            self._in_a_row = 0 if updates else self._in_a_row
            return False
        self.skipped += 1
        self._in_a_row += 1
        return self._in_a_row < self._most_skips and all(update.scale() >= self._least_scale for update in skipped)
