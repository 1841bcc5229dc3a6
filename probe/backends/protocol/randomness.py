"""Random numbers that two runs share: group `Randomness` of an adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Protocol

from probe.common.interfaces import Handle, RandomCall


class Randomness(Protocol):
    """Ways to make two runs draw the same numbers."""

    def seed_everything(self, seed: int, deterministic: bool) -> None: ...

    def remove_dropout(self) -> Handle: ...

    def fix_random_calls(self) -> Handle: ...

    def random_calls(self) -> Sequence[RandomCall]:
        """The functions and tensor methods that draw random numbers."""

    def dropping_calls(self) -> Sequence[RandomCall]:
        """The functions that drop elements at random, if they can be replaced; those of MindSpore cannot."""

    def random_state(self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any | None:
        """From what the call `base` is about to draw random numbers, as a tensor; ``None`` of one that draws none.

        ``None`` too where the framework cannot say it. Asking changes nothing.
        """
