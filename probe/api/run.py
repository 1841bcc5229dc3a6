"""``msprobe run``: collecting from a program that has no line of ours.

The program is run in this process. When it has imported a framework, that framework's adapter is asked to report how
the program trains, and a `TrainingLoop` makes steps of it. The debugger is the one that the script would have made.

What collects needs numpy, which is imported after the program's framework: a program may set variables before that
import of its own.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from probe.api.import_watch import ImportWatch
from probe.backends import loader
from probe.backends.shared.patching import wrap_attribute
from probe.collect.config_reload import ConfigReload
from probe.collect.training_loop import AUTO, TrainingLoop
from probe.common import log
from probe.common.config.fields import numbers_text
from probe.common.interfaces import Handle

if TYPE_CHECKING:
    from probe.api.debugger import PrecisionDebugger
    from probe.collect.session import Session

_FRAMEWORKS = ("torch", "mindspore", "mindtorch")
_SPAWN = "multiprocessing.spawn"
"""Not imported by us: MindSpore reports errors at the end of a program in which it was imported first."""
_NAMES = {"torch": "probe.api.pytorch", "mindspore": "probe.api.mindspore", "msadapter": "probe.api.mindspore"}
"""Where the debugger of a backend is."""


class RunningProgram:
    """Collects from the program that is run in this process.

    Args:
        config_path: A configuration file, or ``None``.
        arguments: `task`, `dump_path`, `level` and `step`, which win over the file.
        step_after: What a step ends with, see `TrainingLoop`.

    Raises:
        MsprobeException: something in the configuration is wrong.
    """

    def __init__(self, config_path: str | None, arguments: dict[str, Any], step_after: str = AUTO) -> None:
        self.config = ConfigReload(config_path, arguments).config
        # The program may change its directory.
        self._config_path = config_path and os.path.abspath(config_path)
        self._arguments = {**arguments, "dump_path": os.path.abspath(self.config.dump_path)}
        self._step_after = step_after
        self._loops: dict[str, TrainingLoop] = {}
        self._own_debugger = False
        self._spawned = False
        """Whether the program started processes that collect by themselves."""
        self._spawning: Handle | None = None
        self._watch = ImportWatch((*_FRAMEWORKS, _SPAWN), self._imported)
        for name in (*_FRAMEWORKS, _SPAWN):
            if name in sys.modules:
                self._imported(name)

    def _with_run(self, preparation: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """What a process is given that is spawned, and not forked: it has to begin such a run itself.

        It is unpickled before the program's main module is imported there, and nothing reads it.
        """

        def given(*args: Any, **kwargs: Any) -> dict[str, Any]:
            self._spawned = True
            return {**preparation(*args, **kwargs), "msprobe run": self}

        return given

    def __reduce__(self) -> Any:
        return _begin_in_child, (self._config_path, self._arguments, self._step_after)

    def _imported(self, name: str) -> None:
        if name == _SPAWN:
            self._spawning = wrap_attribute(sys.modules[name], "get_preparation_data", self._with_run)
            return
        backend = "msadapter" if name == "mindtorch" else loader.detect(name)
        if backend in self._loops:
            return
        try:
            training = loader.load(backend).training
            self._loops[backend] = TrainingLoop(training, self._step_after, lambda: self._session(backend))
        except Exception as error:
            log.error(f"msprobe run cannot watch {name} ({type(error).__name__}: {error}); the program runs without.")

    def _session(self, backend: str) -> Session | None:
        """The session of the one debugger, made when the first of the frameworks trains."""
        if any(loop.session is not None for loop in self._loops.values()):
            return None
        if any(_debugger(each).exists() for each in _NAMES):
            self._own_debugger = True
            log.warning("the script has a PrecisionDebugger of its own, which collects; msprobe run does not.")
            return None
        if backend != "torch":
            loader.room("mindspore", "hooks.graph_mode").check_pynative()
        kind = _debugger(backend)
        kind(self._config_path, **self._arguments)
        return kind.session()

    def end(self, failed: bool) -> None:
        """The program has ended: say what was collected, or why nothing was."""
        self._watch.remove()
        if self._spawning is not None:
            self._spawning.remove()
        for loop in self._loops.values():
            loop.finish(failed)
        failure = next((loop.failure for loop in self._loops.values() if loop.failure), "")
        in_step = any(loop.step_open for loop in self._loops.values())
        unended = [loop.waiting_text() for loop in self._loops.values() if loop.step_open and not loop.steps]
        for loop in self._loops.values():
            loop.end()
        if self._own_debugger:
            return
        forwards = sum(loop.forwards for loop in self._loops.values())
        if self._spawned and not forwards:
            log.info(f"the processes that were started collect by themselves; see: {self._show_command}")
            return
        session = next((loop.session for loop in self._loops.values() if loop.session is not None), None)
        if session is None:
            log.warning(f"msprobe run collected nothing: {failure or self._why_nothing(forwards)}")
            return
        session.stop()
        if unended and not failed:
            log.warning(f"the program ended in its first step. {unended[0]}")
        collected = session.collected_steps
        if not collected:
            steps = sum(loop.steps for loop in self._loops.values())
            if session.starts and session.is_watching and not failure:
                log.info(f"{steps} steps were watched, and none had a value that is not finite.")
                return
            why = f"the program ran {steps} steps, none of them wanted."
            if session.starts:
                why = failure or "what was wanted could not be written, or is not of this rank; see the lines above."
            log.warning(f"msprobe run collected nothing: {why}")
            return
        which = f"step{'s' if len(collected) > 1 else ''} {numbers_text(collected)}"
        if session.is_checking:
            log.info(f"the calls of {which} were checked; what was found is below {self._arguments['dump_path']}.")
            return
        until = f", step {collected[-1]} until the program failed in it," if failed and in_step else ""
        log.info(f"collected {which}{until} into {self._arguments['dump_path']}; see: {self._show_command}")

    @property
    def _show_command(self) -> str:
        return f"msprobe show {shlex.quote(self.config.dump_path)}"

    def _why_nothing(self, forwards: int) -> str:
        if not self._loops:
            text = f"the program imported none of {', '.join(_FRAMEWORKS)} in this process. "
            return text + "What launches others is put in front: torchrun ... -m msprobe run train.py."
        text = "no call of a model was seen in this process, and a step begins with one. A computation without a "
        text += "torch.nn.Module or mindspore.nn.Cell is put into one, or collected with a PrecisionDebugger in the "
        text += "script. What launches other processes is put in front of msprobe run. "
        if forwards:
            text = f"none of the {forwards} calls of models that were seen recorded gradients. "
            text += "--step-after forward collects inference too. "
        return text + "Calls inside of a compiled function (torch.compile, ms.jit) are not seen."


def _debugger(backend: str) -> type[PrecisionDebugger]:
    found: type[PrecisionDebugger] = importlib.import_module(_NAMES[backend]).PrecisionDebugger
    return found


def _begin_in_child(config_path: str | None, arguments: dict[str, Any], step_after: str) -> RunningProgram | None:
    """Collect from a process that the program has spawned; whatever is wrong, the process begins."""
    try:
        return RunningProgram(config_path, arguments, step_after)
    except Exception as error:
        log.error(f"msprobe run collects nothing in process {os.getpid()} ({type(error).__name__}: {error}).")
        return None
