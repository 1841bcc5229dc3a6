"""Make random calls repeat their values: before each of them its generator goes back to a saved state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from probe.backends.shared.patching import Attributes
from probe.backends.shared.randomness.recorder import numpy_calls, python_calls, replace_call
from probe.common.interfaces import Handle, RandomCall


class DrawSource(NamedTuple):
    """A generator, by the functions that draw from it and those that read and set its state."""

    calls: Sequence[RandomCall]
    get_state: Callable[[], Any]
    set_state: Callable[[Any], Any]


class _FixedCalls:
    def __init__(self, sources: Sequence[DrawSource]) -> None:
        self._active = True
        self._sources = sources
        self._states: list[Any] = []
        self.take_states()
        self._attributes = Attributes()
        for index, source in enumerate(sources):
            for call in source.calls:
                repeating = self._repeating(getattr(call.owner, call.name), source.set_state, index)
                replace_call(self._attributes, call, repeating)

    def take_states(self) -> None:
        self._states = [source.get_state() for source in self._sources]

    def remove(self) -> None:
        """Put the functions back."""
        global _fixed
        # Where another tool has wrapped our function it stays in the chain and only calls through.
        self._active = False
        self._attributes.remove()
        if _fixed is self:
            _fixed = None

    def _repeating(
        self, original: Callable[..., Any], set_state: Callable[[Any], Any], index: int
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._active and kwargs.get("generator") is None:
                set_state(self._states[index])
            return original(*args, **kwargs)

        return call


_fixed: _FixedCalls | None = None


def fix_calls(sources: Callable[[], Sequence[DrawSource]]) -> Handle:
    """Make every later random call of numpy, Python and `sources` draw as if it were the first one from now on.

    A second call takes the states of that moment. A call with a ``generator`` of its own is not touched.
    """
    global _fixed
    if _fixed is None:
        numpy = DrawSource(numpy_calls(), np.random.get_state, np.random.set_state)
        python = DrawSource(python_calls(), random.getstate, random.setstate)
        _fixed = _FixedCalls([*sources(), numpy, python])
    else:
        _fixed.take_states()
    return _fixed


def take_states() -> None:
    """Save the present states, if calls are fixed; later calls start from them."""
    if _fixed is not None:
        _fixed.take_states()
