"""The models that are collected from, and what their names begin with."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any


def by_prefix(models: Any) -> dict[str, Any]:
    """The models by what the names of their modules begin with.

    Args:
        models: One model, which needs no prefix; a list or tuple, whose indices are the prefixes; or a mapping of them.
    """
    if isinstance(models, Mapping):
        return dict(models)
    if isinstance(models, (list, tuple)):
        return {str(index): model for index, model in enumerate(models)}
    return {"": models}


def joined(prefix: str, path: str) -> str:
    """The path of a module, with the prefix of its model."""
    return f"{prefix}.{path}" if prefix else path


class LastModels:
    """The models that were given last, to which the names belong."""

    def __init__(self) -> None:
        self._models: dict[str, weakref.ref[Any]] = {}

    def replace(self, models: dict[str, Any]) -> bool:
        """Note `models`; whether all that were noted before are among them, under the same names."""
        kept = all(prefix in models and models[prefix] is seen() for prefix, seen in self._models.items())
        self._models = {prefix: weakref.ref(model) for prefix, model in models.items()}
        return kept
