"""Texts that are written once, and the index of each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Texts:
    """A list of texts, each once, in the order of their first use."""

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._indexes)

    def index(self, text: str) -> int:
        """The index of `text`; it is added if it is new."""
        return self._indexes.setdefault(text, len(self._indexes))

    def indexes(self, texts: Iterable[str]) -> NDArray[np.int64]:
        """The index of each of `texts`."""
        known = self._indexes
        return np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)

    @property
    def texts(self) -> list[str]:
        """All of them."""
        return list(self._indexes)
