"""The environment of the run, written next to the dump once for each process."""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from probe.backends.protocol import FrameworkAdapter, settings_of
from probe.collect.collector import Collector
from probe.common.config.config import Config
from probe.common.containers import by_prefix
from probe.common.dump.layout import process_folder
from probe.common.environment import environment_file as environment_files
from probe.common.environment.environment_file import (
    MOST_BYTES,
    MOST_SETS,
    STATISTICS,
    Buffer,
    ModuleSettings,
    Settings,
    folded,
)
from probe.common.environment.gathered import FrameworkFacts, clean_settings, command, gathered
from probe.common.interfaces import Entry, Handle, StatisticsMode

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


# --- environment


class RunEnvironment:
    """Gathers the environment at the first `start`, and writes it as soon as a step was written.

    Between `start` and the end of the step one hook waits for the first update of an optimizer, which tells the
    hyper-parameters; after that update there is none.

    Args:
        adapter: The framework.
        collector: Logs failures of the tool.
        steps: The steps of which something was written.
    """

    def __init__(self, adapter: FrameworkAdapter, collector: Collector, steps: Callable[[], Sequence[int]]) -> None:
        self._adapter = adapter
        self._collector = collector
        self._steps = steps
        self._content: dict[str, Any] | None = None
        self._models = DescribedModels(adapter)
        self._path = ""
        self._is_written = False
        """True if the file has everything that is known."""
        self._handle: Handle | None = None
        self._has_new_casts = False
        """True if the table of modules lacks casts that were noted."""
        self._told: dict[int, str] = {}
        """The class of each optimizer whose hyper-parameters are known, by its identity."""

    def gather(self, config: Config) -> None:
        """Read the environment, the first time; before any other hook is attached."""
        if not config.environment:
            return
        if self._content is None:
            self._content = {
                **gathered(facts_of(self._adapter)),
                "command": command(),
                "steps": list(config.step),
            }
        settings = self._adapter.settings
        if settings is not None and not self._told and self._handle is None:
            note = partial(self._collector.attempt, self._add_optimizer)
            self._handle = settings.attach_updates(note)

    def note_models(self, config: Config, models: Any, step: int) -> None:
        """Read the settings of the modules of `models` that were not known before; `models` may be ``None``."""
        if self._content is None or not config.environment:
            return
        if self._models.add(models, step):
            self._content["modules"] = self._models.tables
            self._is_written = False

    def wants_casts(self, config: Config, step: int) -> bool:
        """True if the casts of modules are noted in `step`: in the first one of each set of models."""
        return self._content is not None and config.environment and self._models.is_new_in(step)

    def note_cast(self, dtype: str) -> None:
        """Note a cast to a float8 dtype by the module that runs."""
        module = self._collector.running_module()
        if module is not None and self._models.add_cast(module, dtype):
            self._has_new_casts, self._is_written = True, False

    def _add_optimizer(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) in self._told:
            return
        # Noted first: what fails is not tried at each update.
        self._told[id(optimizer)] = type(optimizer).__name__
        if self._content is None:
            return
        groups = [clean_settings(group)[0] for group in settings_of(self._adapter).optimizer_groups(optimizer)]
        self._content.setdefault("optimizers", []).append({"type": type(optimizer).__name__, "groups": groups})
        self._is_written = False

    def write(self, config: Config, rank: int | None) -> None:
        """Write the file if a step of this process was written and the file lacks anything."""
        if self._told:
            self._collector.attempt(self.detach)
        if self._content is None or self._is_written or not config.environment or not self._steps():
            return
        if self._has_new_casts:
            self._has_new_casts = False
            self._models.fold_again()
        # Noted first: a disk that is full is not tried at each step.
        self._is_written = True
        root = os.path.abspath(config.dump_path)
        if os.path.isdir(root):
            before, self._path = self._path, environment_files.write(root, process_folder(rank), self._content)
            if before and before != self._path:
                # The process has got a rank since.
                with contextlib.suppress(OSError):
                    os.unlink(before)

    def forked(self) -> None:
        """The file is the parent's; a child that collects writes one of its own."""
        self._path, self._is_written = "", False

    def detach(self) -> None:
        """Take the hook away, if it waits still; the next `start` puts it there again."""
        if self._handle is not None:
            # Forgotten last: what could not be removed is removed with the next step.
            self._handle.remove()
            self._handle = None


def facts_of(adapter: FrameworkAdapter) -> FrameworkFacts:
    """The answers of the framework of this process."""
    return FrameworkFacts(adapter.framework) if adapter.settings is None else adapter.settings.facts()
