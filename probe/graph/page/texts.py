"""Texts that are written once, and the index of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

_encode = msgspec.json.Encoder().encode


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


def as_json(value: Any) -> bytes:
    """Values as JSON; half a character, which a name may hold that came from broken bytes, is shown as unknown."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(without_surrogates(value))


def without_surrogates(value: Any) -> Any:
    """The same value, with texts that can be written."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {without_surrogates(key): without_surrogates(each) for key, each in value.items()}
    return [without_surrogates(each) for each in value] if isinstance(value, (list, tuple)) else value
