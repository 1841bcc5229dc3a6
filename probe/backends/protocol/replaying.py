"""A step kept and run again: group `Replaying` of an adapter, which not every framework has."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Callable

from typing_extensions import Protocol

from probe.common.interfaces import Handle


class ReplayError(Exception):
    """The reason why a step cannot be run again, in words for the log."""


class KeptStep(Protocol):
    """One step that was kept, to run the forward and the backward of its models again."""

    models: Any
    """The models as they were given to `StepKeeper.attach`; ``None`` if there were none."""
    left_out: int
    """Calls of the models that are not kept, since there were too many."""

    def undone(self) -> contextlib.AbstractContextManager[None]:
        """Restore the models and the random states afterwards, bitwise, whatever is done to the models inside."""

    def run_again(self, begin: Callable[[Mapping[str, int]], None]) -> None:
        """Call the models again and run the backward; `begin` gets before each call what was noted when it was kept.

        Raises:
            ReplayError: it cannot be done.
        """

    def forget(self) -> None:
        """Free all of it."""


class StepKeeper(Protocol):
    """Keeps of each step what it needs to be run again."""

    def attach(self, models: Any) -> Handle:
        """Keep the calls of `models` until the handle is removed, and the gradients that come to their outputs.

        Raises:
            ReplayError: calls of these models cannot be run again.
        """

    def take(self) -> KeptStep:
        """The steps that were kept since the last call."""

    def forget(self) -> None:
        """Keep nothing of what was kept since the last time."""


Replaying = Callable[[bool, Callable[[], Mapping[str, int]], Callable[[str, BaseException], None]], StepKeeper]
"""Makes the object that keeps steps.

Its arguments: True if parameters and buffers are kept too; a function that is asked when a call begins, whose answer
`KeptStep.run_again` gives back; and one that is called with a text and the error when something fails.
"""
