"""Texts that are written once, and the places where they are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Texts:
    """A list of texts, each once, in the order of their first use."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def place(self, text: str) -> int:
        """Where `text` is; it is added if it is new."""
        return self._places.setdefault(text, len(self._places))

    def places(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """Where each of `texts` is."""
        known = self._places
        return np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)

    @property
    def texts(self) -> list[str]:
        """All of them."""
        return list(self._places)
