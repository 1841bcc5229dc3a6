"""Loss scaling: a step whose gradients overflow is skipped and the scale made smaller, which is no fault."""

from __future__ import annotations

from probe.backends.protocol import ScaledUpdate
from probe.common.config.config import Config


class ScaledSteps:
    """Follows the gradient scalers of a training.

    Args:
        config: Says when skipped steps are too many.
    """

    def __init__(self, config: Config) -> None:
        self._least_scale = config.min_scale
        self._most_skips = config.max_skips
        self._updates: list[ScaledUpdate] = []
        self._in_a_row = 0
        self.skipped = 0
        """Steps in all."""

    def note(self, update: ScaledUpdate) -> None:
        """A scaler has let an optimizer make its step, or has not."""
        self._updates.append(update)

    def skips_expected(self) -> bool:
        """Whether the step that ends now is one that a scaler has skipped and may skip; asked once a step."""
        updates, self._updates = self._updates, []
        skipped = [update for update in updates if update.was_skipped()]
        if not skipped:
            self._in_a_row = 0 if updates else self._in_a_row
            return False
        self.skipped += 1
        self._in_a_row += 1
        return self._in_a_row < self._most_skips and all(update.scale() >= self._least_scale for update in skipped)
