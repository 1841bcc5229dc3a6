"""The settings of the modules of a run, described once for each set of models, at its first `start`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

from probe.backends.protocol import FrameworkAdapter
from probe.common.containers import by_prefix
from probe.common.environment.modules import MOST_BYTES, MOST_SETS, STATISTICS, Buffer, ModuleSettings, Settings, folded
from probe.common.interfaces import Entry, StatisticsMode

_MOST_ELEMENTS = 1 << 24
"""Elements of a buffer whose statistics are computed, which take some 20 ms."""


class DescribedModels:
    """Describes models that were not seen in this combination before.

    Args:
        adapter: The framework.
    """

    def __init__(self, adapter: FrameworkAdapter) -> None:
        self._adapter = adapter
        self._last: dict[str, list[weakref.ref[Any]]] = {}
        """The models of the last entry, by prefix."""
        self.tables: list[dict[str, Any]] = []
        """An entry of the file for each set of models, in the order of the steps."""
        self._described: dict[str, ModuleSettings] = {}
        """The modules of the last entry."""

    def add(self, models: Any, step: int) -> bool:
        """Describe the models that `step` begins with, or goes on with; true if they are other ones than before."""
        given = {prefix: model for prefix, model in by_prefix(models).items() if model is not None}
        is_known = all(self._is_last(prefix, model) for prefix, model in given.items())
        # In one step one model may be started after the other.
        is_further = self.is_new_in(step)
        if is_known or len(self.tables) > MOST_SETS:
            return False
        if not is_further and len(self.tables) == MOST_SETS:
            # Those that follow are not described, and are not taken for the last ones that are.
            self._last, self._described = {}, {}
            self.tables.append(folded(step, {}))
            return True
        before = self._last if is_further else {}
        self._last = {**before, **{key: [*before.get(key, ()), weakref.ref(each)] for key, each in given.items()}}
        described = self._settings(given)
        self._described = {**self._described, **described} if is_further else dict(described)
        if is_further:
            del self.tables[-1]
        self.tables.append(folded(step, self._described, self._room))
        return True

    def is_new_in(self, step: int) -> bool:
        """True if the models of `step` were described in it, so that what they do in it is noted as well."""
        return 0 < len(self.tables) <= MOST_SETS and bool(self.tables[-1]["step"] == step)

    def add_cast(self, module: str, dtype: str) -> bool:
        """Note that the forward of a module cast a tensor to `dtype`; true if that was not known."""
        known = self._described.get(module)
        if known is None or dtype in known.casts:
            return False
        self._described[module] = known._replace(casts=tuple(sorted((*known.casts, dtype))))
        return True

    def fold_again(self) -> None:
        """Write the last entry anew, with the casts that were noted since."""
        step = self.tables.pop()["step"]
        self.tables.append(folded(step, self._described, self._room))

    @property
    def _room(self) -> int:
        """The bytes that the next entry may have: the first ones may be large, and all together fit into the file."""
        return max(MOST_BYTES >> len(self.tables), MOST_BYTES // MOST_SETS)

    def _is_last(self, prefix: str, model: Any) -> bool:
        return any(last() is model for last in self._last.get(prefix, ()))

    def _settings(self, models: Mapping[str, Any]) -> Settings:
        described = () if self._adapter.settings is None else self._adapter.settings.modules(models)
        entries = self._adapter.hooks.unobserved(self._entries, [each.buffers for each in described])
        return {
            each.name: each.settings._replace(
                buffers={name: _buffer(entry, name in each.states) for name, entry in of_module.items()}
            )
            for each, of_module in zip(described, entries)
        }

    def _entries(self, buffers: list[Mapping[str, Any]]) -> list[dict[str, Entry]]:
        """The entries of all buffers, with statistics of those that are not too large."""
        tensors, mode = self._adapter.tensors, StatisticsMode()
        found = [
            {name: tensors.describe_tensor(each, mode) for name, each in of_module.items() if _is_small(each)}
            for of_module in buffers
        ]
        tensors.resolve()
        return found


def _is_small(tensor: Any) -> bool:
    return bool(math.prod(tensor.shape) <= _MOST_ELEMENTS)


def _buffer(entry: Entry, is_state: bool) -> Buffer:
    statistics = tuple(entry.get(key) for key in STATISTICS)
    return Buffer(str(entry.get("dtype")), tuple(entry.get("shape", ())), statistics, is_state)
