"""``msprobe run --task grad_probe``: the gradient probe of a program that has no line of ours."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from probe.api.monitoring.program import WatchedProgram
from probe.common import log
from probe.common.config.config import GRAD_PROBE, Config, load_config

if TYPE_CHECKING:
    from probe.api.monitoring.grad_probe import GradientProbe

_DUMP_PATH = "./msprobe_output"
"""The folder if nothing names one, as with the other tasks of the command."""


class ProbedProgram(WatchedProgram):
    """Writes the gradients of the first model of the program that is trained.

    Args:
        config_path: A configuration file of the debugger, or ``None``.
        output: The folder of the files, or ``None`` for that of the file.
        step: The steps of the optimizer that are wanted, as in the file; ``None`` for those of the file.
        module: As of `WatchedProgram`: the parameters of these modules are wanted.

    Raises:
        MsprobeException: something in the configuration is wrong.
    """

    done = "probed"
    command = "compare ANOTHER_RUN"

    def __init__(self, config_path: str | None, output: str | None, step: list[str] | None, module: str | None) -> None:
        without_file = None if config_path is not None else _DUMP_PATH
        config = load_config(config_path, task=GRAD_PROBE, dump_path=output or without_file, step=step)
        # The program may change its directory.
        self._config: Config = replace(config, dump_path=os.path.abspath(config.dump_path))
        super().__init__(module)

    @property
    def folder(self) -> str:
        """The folder of the ranks."""
        return self._config.dump_path

    def _begin(self, backend: str, model: Any, optimizer: Any) -> GradientProbe | None:
        """Probe a model; ``None`` if the script does so itself."""
        # It needs numpy, which is imported after the framework of the program.
        from probe.api.monitoring.grad_probe import GradientProbe

        if GradientProbe.probes:
            log.warning("the script has a gradient probe of its own, which collects; msprobe run does not.")
            return None
        paths = self.wanted_paths(backend, model)
        probe = GradientProbe(self._config, backend)
        probe.begin(model, optimizer, None if paths is None else _inside(paths))
        return probe


def _inside(paths: list[str]) -> Any:
    """Predicate over names of parameters: true of those of one of the modules."""
    starts = tuple(f"{path}." for path in paths)
    return lambda name: name.startswith(starts)
