"""The environment of the run, written next to the dump once for each process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from probe.backends.protocol import FrameworkAdapter, settings_of
from probe.collect.collector import Collector
from probe.collect.module_settings import DescribedModels
from probe.common.config.config import Config
from probe.common.dump.layout import process_folder
from probe.common.environment import environment_file as environment_files
from probe.common.environment.command import command
from probe.common.environment.gathered import FrameworkFacts, gathered
from probe.common.environment.secrets import clean_settings
from probe.common.interfaces import Handle


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
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()


def facts_of(adapter: FrameworkAdapter) -> FrameworkFacts:
    """The answers of the framework of this process."""
    return FrameworkFacts(adapter.framework) if adapter.settings is None else adapter.settings.facts()
