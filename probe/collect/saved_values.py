"""``save``: one value of the user's program, and its gradient when there is one, into debug.json."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any, Callable

from probe.backends.protocol import FrameworkAdapter
from probe.collect.collector import Collector
from probe.common import log
from probe.common.containers import MAX_CONTAINERS
from probe.common.dump import naming
from probe.common.interfaces import Handle

_SCALARS = (int, float, str, bool)


class SavedValues:
    """Counts the values saved under each name and attaches to their gradients."""

    def __init__(self, adapter: FrameworkAdapter, collector: Collector) -> None:
        self._is_tensor, self._attach_gradient = adapter.tensors.is_tensor, adapter.hooks.attach_gradient
        self._unobserved = adapter.hooks.unobserved
        self._collector = collector
        self._counts: dict[str, int] = {}

    def reset(self) -> None:
        """Count from zero, since a new training step begins."""
        self._counts = {}

    def allowed(self, variable: Any, name: Any) -> bool:
        """True if the value can be saved; if not, that is logged."""
        if not isinstance(name, str) or not name:
            log.warning(f"save: name is {name!r}; allowed: a text. Nothing is saved.")
            return False
        refused = self._refused(variable, set(), set())
        if refused is not None:
            log.warning(
                f'save: "{name}" is or holds a {refused}; allowed: tensor, int, float, str, bool, and dict, list, '
                "tuple of them. Nothing is saved."
            )
        return refused is None

    def _refused(self, value: Any, around: set[int], looked_at: set[int]) -> str | None:
        """The type of the first part that cannot be saved. No container is looked at twice: lists may share parts."""
        if self._is_tensor(value) or isinstance(value, _SCALARS):
            return None
        if not isinstance(value, (dict, list, tuple)):
            return type(value).__name__
        if id(value) in around:
            return "container that holds itself"
        if id(value) in looked_at:
            return None
        looked_at.add(id(value))
        around.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            refused = self._refused(item, around, looked_at)
            if refused is not None:
                return refused
        around.remove(id(value))
        return None

    def save(self, variable: Any, name: str, save_backward: bool) -> list[Handle]:
        """Record `variable`; the handles of the gradients that are waited for."""
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        full = naming.debug_name(name, number)
        attempt = self._collector.attempt
        attempt(self._unobserved, self._write, variable, full, about=full)
        handles: list[Handle] = []
        if save_backward:
            full = naming.debug_name(f"{name}_grad", number)
            attempt(self._watch, variable, full, handles, about=full)
        return handles

    def _write(self, variable: Any, full: str) -> None:
        collector = self._collector
        entry = collector.describe_saved(full, variable, full)
        collector.write_saved(full, collector.next_order(), entry)

    def _watch(self, variable: Any, full: str, handles: list[Handle]) -> None:
        """Write a record without the gradients now, and fill it as the backward pass computes them.

        The handles go to `handles` one by one: also those of a watch that fails half-way are to be removed.
        """
        collector = self._collector
        order = collector.next_order()
        holder: list[Any] = [None]
        containers = count()
        paths: set[str] = set()

        def visit(value: Any, put: Callable[[Any], None], path: str) -> Any:
            if isinstance(value, (dict, list, tuple)) and next(containers) >= MAX_CONTAINERS:
                return None
            if isinstance(value, dict):
                named: dict[str, Any] = {}
                for key, item in value.items():
                    unique_key = naming.unused(str(key), named)
                    named[unique_key] = None
                    named[unique_key] = visit(item, partial(named.__setitem__, unique_key), f"{path}.{unique_key}")
                return named
            if isinstance(value, (list, tuple)) and not self._is_tensor(value):
                listed: list[Any] = [None] * len(value)
                for i, item in enumerate(value):
                    listed[i] = visit(item, partial(listed.__setitem__, i), f"{path}.{i}")
                return listed
            if self._is_tensor(value):
                path = naming.unused(path, paths)
                paths.add(path)
                handle = self._attach_gradient(
                    value, self._gradient_callback(holder, put, full, path, order), collector, full
                )
                if handle is not None:
                    handles.append(handle)
            return None

        holder[0] = visit(variable, partial(holder.__setitem__, 0), full)
        collector.write_saved(full, order, holder[0])

    def _gradient_callback(
        self, holder: list[Any], put: Callable[[Any], None], full: str, path: str, order: int
    ) -> Callable[[Any], None]:
        collector = self._collector

        def take(gradient: Any) -> None:
            if collector.step is not None:
                put(collector.describe_saved(full, gradient, path))
                collector.write_saved(full, order, holder[0])

        return take
