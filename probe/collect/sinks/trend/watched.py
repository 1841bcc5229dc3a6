"""The models and the optimizer of a training that a monitor collects, which it does not keep alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from probe.backends.protocol import FrameworkAdapter, trends_of

_Named = list[tuple[str, "weakref.ref[Any]"]]


class Chunk:
    """One model of several. A part that the program has deleted is no part of it any more."""

    def __init__(self, adapter: FrameworkAdapter, number: int, model: Any) -> None:
        self.number = number
        self._model = weakref.ref(model)
        trends = trends_of(adapter)
        self._modules: _Named = [(path, weakref.ref(each)) for path, each in trends.modules(model)]
        parameters = trends.parameters(model, frozen=True)
        self._parameters: _Named = [(name, weakref.ref(each)) for name, each in parameters]

    @property
    def model(self) -> Any:
        """The model itself; ``None`` if it is deleted, and its modules may be in use in another one."""
        return self._model()

    @property
    def modules(self) -> Iterator[tuple[str, Any]]:
        """The modules with their paths."""
        return _alive(self._modules)

    @property
    def parameters(self) -> Iterator[tuple[str, Any]]:
        """The parameters with their names, those that are frozen as well."""
        return _alive(self._parameters)


class Watched:
    """The models of a training and its optimizer."""

    def __init__(self, adapter: FrameworkAdapter, models: Sequence[Any], optimizer: Any) -> None:
        self.chunks = [Chunk(adapter, at, model) for at, model in enumerate(models)]
        self._optimizer = None if optimizer is None else weakref.ref(trends_of(adapter).innermost(optimizer))

    @property
    def optimizer(self) -> Any:
        """The innermost optimizer; ``None`` if there is none, or it is deleted."""
        return None if self._optimizer is None else self._optimizer()


def _alive(named: _Named) -> Iterator[tuple[str, Any]]:
    for name, each in named:
        found = each()
        if found is not None:
            yield name, found
