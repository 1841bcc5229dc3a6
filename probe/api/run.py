"""``msprobe run``: collecting from a program that has no line of ours.

The program is run in this process. When it has imported a framework, that framework's adapter is asked to report how
the program trains, and a `TrainingLoop` makes steps of it. The debugger is the one that the script would have made.

What collects needs numpy, which is imported after the program's framework: a program may set variables before that
import of its own.
"""

from __future__ import annotations

import functools
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from probe.api.following import environment
from probe.api.following.environment import FollowedChildren
from probe.api.import_watch import ImportWatch
from probe.backends import loader
from probe.backends.protocol import training_of
from probe.backends.shared.patching import wrap_attribute
from probe.collect.config_reload import ConfigReload
from probe.collect.training_loop import AUTO, TrainingLoop
from probe.common import log
from probe.common.config.fields import numbers_text
from probe.common.dump import processes
from probe.common.dump.frameworks import FRAMEWORKS, all_tested_text, is_installed
from probe.common.dump.processes import RunProcess
from probe.common.dump.reading.runs import find_dumps, folders_of_run
from probe.common.errors import MsprobeException
from probe.common.interfaces import Handle

if TYPE_CHECKING:
    from probe.api.debugger import PrecisionDebugger
    from probe.collect.session import Session

_BACKENDS = {framework.module: backend for backend, framework in FRAMEWORKS.items()}
"""By the module that a program imports."""
_SPAWN = "multiprocessing.spawn"
"""Not imported by us: MindSpore reports errors at the end of a program in which it was imported first."""
_WATCHING = ("overflow_check", "free_benchmark")
"""Tasks that write only what they find."""
_DEFAULTS = {"level": "mix", "dump_path": "./msprobe_output", "step": ["0-1"]}
"""The settings if no configuration file is given."""
_DEFAULTS_OF_TASK: dict[str, dict[str, Any]] = {"overflow_check": {"step": []}}
"""With this task no step is more worth a look than others."""
_MOST_SHOWN = 12
"""Processes that are named in a line."""
_NAMES = {"torch": "probe.api.pytorch", "mindspore": "probe.api.mindspore", "msadapter": "probe.api.mindspore"}
"""The location of the debugger of a backend."""


_BEGIN_IN_CHILD = """
try:
    from probe.api.run import begin_in_child
except Exception as error:
    import os, sys
    print(f"msprobe run collects nothing in process {os.getpid()} ({type(error).__name__}: {error}).", file=sys.stderr)
else:
    begin_in_child(*given)
"""
"""The code that a spawned process runs, perhaps in a Python for which this package is not installed."""


def _has_signal_handlers() -> bool:
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(callable(each) and each is not signal.default_int_handler for each in handlers)


class RunningProgram:
    """Collects from the program that is run in this process.

    Args:
        config_path: A configuration file, or ``None``.
        arguments: `task`, `dump_path`, `level`, `step` and others, which win over the file; ``None`` of what is not
            given.
        step_after: What a step ends with, see `TrainingLoop`.
        process: What this process is in a run that another one began; without it, it begins one.
        follow: True to collect from Pythons, too, that the program starts as commands of their own.

    Raises:
        MsprobeException: something in the configuration is wrong.
    """

    present: ClassVar[RunningProgram | None] = None
    """The one of this process."""

    def __init__(
        self,
        config_path: str | None,
        arguments: dict[str, Any],
        step_after: str = AUTO,
        process: RunProcess | None = None,
        follow: bool = False,
    ) -> None:
        used = arguments if config_path is not None else _with_defaults(arguments)
        self.config = ConfigReload(config_path, used).config
        if self.config.against is not None:
            find_dumps(self.config.against)  # before the program begins
        # The program may change its directory.
        self._config_path = config_path and os.path.abspath(config_path)
        dump_path = os.path.abspath(self.config.dump_path)
        against = self.config.against and os.path.abspath(self.config.against)
        self._arguments = {**arguments, "dump_path": dump_path, "against": against}
        """The unchanged values, for other processes of the program."""
        self._used = {**used, "dump_path": dump_path, "against": against}
        self._step_after = step_after
        self._loops: dict[str, TrainingLoop] = {}
        self._own_debugger = False
        self._debugger: type[PrecisionDebugger] | None = None
        """The debugger that was made for the program."""
        self._spawning: Handle | None = None
        self._pid = os.getpid()
        self._replacing = [wrap_attribute(os, name, self._followed) for name in ("execv", "execve")]
        """Calls by which the program replaces itself, such as ``jupyter`` does by ``jupyter-nbconvert``."""
        self._unwatched: dict[str, str] = {}
        """By the module, why the framework cannot be watched."""
        self._has_failed = False
        """A failure at the end of the collection was logged."""
        if RunningProgram.present is not None:
            RunningProgram.present.make_room()  # the program runs another one under msprobe run
        RunningProgram.present = self
        self._process = processes.begin_run() if process is None else processes.adopt(process)
        self._follower = FollowedChildren(self._config_path, self._arguments, step_after) if follow else None
        self._tell_children()
        self._watch = ImportWatch((*_BACKENDS, _SPAWN), self._imported, self._not_imported)
        for name in (*_BACKENDS, _SPAWN):
            if name in sys.modules:
                self._imported(name)

    def adopt(self, process: RunProcess) -> None:
        """Make this process `process` of its run, from now on."""
        self._process = processes.adopt(process)
        self._tell_children()

    def _tell_children(self) -> None:
        if self._follower is not None:
            self._follower.tell(self._process)

    def forked(self) -> None:
        """Begin anew in a process that was forked: if it trains, its steps are its own, from 0 on."""
        self._process = processes.present() or self._process
        self._tell_children()
        if not self._own_debugger:
            for loop in self._loops.values():
                loop.forked()

    def _followed(self, replace: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the ``exec`` family, whose program is collected from if it runs Python."""

        @functools.wraps(replace)
        def replaced(path: Any, arguments: Any, *env: Any, **named: Any) -> Any:
            # In a process that was forked it begins a command of its own; a number is an open file.
            if os.getpid() != self._pid or isinstance(path, int) or not os.access(path, os.X_OK):
                return replace(path, arguments, *env, **named)
            with self._handed_on(path):
                env = tuple({**each, **environment.variables()} for each in (*env, *named.values()))
                return replace(path, arguments, *env)

        return replaced

    @contextmanager
    def _handed_on(self, path: Any) -> Iterator[None]:
        """Have the program at `path` followed, which is about to replace this one; if that fails, this one goes on."""
        follower = None
        if self._follower is None:
            follower = self._follower = FollowedChildren(self._config_path, self._arguments, self._step_after)
            self._tell_children()
        log.info(f"the program replaces itself by {os.fsdecode(path)}, which is followed if it runs Python.")
        try:
            yield
        finally:
            if follower is not None:
                self._follower = None
                follower.remove()

    def _with_run(self, preparation: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """Argument of a process that is spawned and not forked, so that it begins such a run itself.

        It is unpickled before the program's main module is imported there, and nothing reads it.
        """

        def given(*args: Any, **kwargs: Any) -> dict[str, Any]:
            return {**preparation(*args, **kwargs), "msprobe run": _Spawned(self._for_child())}

        return given

    def _for_child(self) -> tuple[Any, ...]:
        child = processes.next_child() or self._process
        follows = self._follower is not None
        return self._config_path, self._arguments, self._step_after, child.run, child.order, follows

    def _imported(self, name: str) -> None:
        if name == _SPAWN:
            self._spawning = wrap_attribute(sys.modules[name], "get_preparation_data", self._with_run)
            return
        backend = loader.detect(_BACKENDS[name])
        if backend in self._loops:
            return
        try:
            training = training_of(loader.load(backend))
            self._loops[backend] = TrainingLoop(training, self._step_after, lambda: self._session(backend))
            self._unwatched.pop(name, None)
        except Exception as error:
            why = str(error) if isinstance(error, MsprobeException) else loader.unusable(FRAMEWORKS[backend], error)
            self._unwatched[name] = why
            log.error(f"msprobe run cannot watch {name}, and the program runs without: {why}")

    def _not_imported(self, name: str, error: Exception) -> None:
        """The program gets the error, and may go on without the framework."""
        if name in _BACKENDS:
            self._unwatched[name] = loader.unusable(FRAMEWORKS[_BACKENDS[name]], error)

    def _session(self, backend: str) -> Session | None:
        """The session of the one debugger, made when the first of the frameworks trains."""
        if any(loop.session is not None for loop in self._loops.values()):
            return None
        if self._debugger is not None:
            # Of the process that this one was forked from.
            self._debugger.reset()
            self._debugger = None
        if any(debugger_class(each).exists() for each in _NAMES):
            self._leave_to_script()
            return None
        loader.load(backend).hooks.check_mode()
        kind = debugger_class(backend)
        kind(self._config_path, **self._used)
        kind.gives_way(self._give_way)
        self._debugger = kind
        session = kind.session()
        # Nobody named the steps of a default, which a short program need not have.
        session.steps_are_named = self._used["step"] == self._arguments["step"]
        return session

    def _leave_to_script(self) -> None:
        self._own_debugger = True
        log.warning("the script has a PrecisionDebugger of its own, which collects; msprobe run does not.")

    def _give_way(self) -> None:
        """The script makes a debugger of its own: if nothing was trained so far, the one that was made for it goes."""
        if self._debugger is None or not all(loop.never_trains() for loop in self._loops.values()):
            return
        for loop in self._loops.values():
            loop.give_way()
        self._debugger.reset()
        self._debugger = None
        self._leave_to_script()

    def leave(self) -> None:
        """Collect nothing more from this process, and leave nothing of it in the way."""
        for each in (self._watch, self._spawning, self._follower, *self._replacing):
            if each is not None:
                self._try(each.remove)
        for loop in self._loops.values():
            self._try(loop.end)
            if loop.session is not None:
                loop.session.stop()
        if RunningProgram.present is self:
            RunningProgram.present = None

    def _try(self, action: Callable[[], object]) -> None:
        """Do what ends the collection; if it fails, the rest ends nevertheless, and the program keeps its status."""
        try:
            action()
        except Exception as error:
            self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            log.error(f"msprobe run failed to end the collection ({type(error).__name__}: {error}).")

    def make_room(self) -> None:
        """Leave, and forget the debugger that was made for the program, so that another one can be run here."""
        self.leave()
        if self._debugger is not None:
            self._try(self._debugger.reset)
            self._debugger = None

    @property
    def has_diverged(self) -> bool:
        """True if the program is to end, or has ended, because it diverges from the golden run."""
        return any(loop.session is not None and loop.session.stops_program for loop in self._loops.values())

    def end(self, reason: str) -> bool:
        """The program has ended: say what was collected, or why nothing was; false if nothing was.

        A failure of the tool is logged, and counts as nothing collected.

        Args:
            reason: What ended the program, as `probe.api.script.Ended` has it; empty if it did not fail.
        """
        try:
            return self._say_what_was_collected(reason)
        except Exception as error:
            self._log_failure(error)
            return False
        finally:
            self.make_room()

    def _say_what_was_collected(self, reason: str) -> bool:
        failed = bool(reason)
        for loop in self._loops.values():
            # It has ended already.
            with suppress(SystemExit):
                loop.finish(failed)
        failures = (why for loop in self._loops.values() for why in (loop.failure, loop.refused) if why)
        failure = next(failures, "")
        in_step = any(loop.step_open for loop in self._loops.values())
        unended = [text for loop in self._loops.values() if (text := loop.unended_text())]
        uneven = [text for loop in self._loops.values() if (text := loop.uneven_text())]
        self.leave()
        unwatched = list(environment.unwatched(self._arguments["dump_path"], self._process.run))
        for text in unwatched:
            log.warning(text)
        if self._own_debugger:
            return True
        children = self._children_text()
        if children:
            log.info(f"collected in processes that the program started: {children}.")
        left_out = sum(loop.left_out for loop in self._loops.values())
        if left_out and _has_signal_handlers():
            # Without one, it is the tool itself that ran a step again.
            log.info(f"calls by signal handlers were not collected ({left_out}), because a step began or ended then.")
        forwards = sum(loop.forwards for loop in self._loops.values())
        session = next((loop.session for loop in self._loops.values() if loop.session is not None), None)
        if children and session is None:
            log.info(f"this process itself collected nothing; see: {self._show_command}")
            return True
        if processes.started() and not forwards and self.config.task in _WATCHING:
            log.info(f"the processes that were started collect by themselves; see: {self._show_command}")
            return True
        if session is None:
            ended = f"the program failed before its first step ({reason}). " if failed else ""
            # A program that chose its status may have computed what is no step.
            fits = not failed or (bool(self._loops) and reason.startswith("exit status"))
            advice = self._why_nothing(forwards, bool(unwatched)) if fits else ""
            return self._log_nothing(failure or f"{ended}{advice}".rstrip())
        status = session.status()
        if unended and not failed:
            log.warning(unended[0])
        elif uneven and not status.is_selective:
            log.info(uneven[0])
        if any(loop.inferred for loop in self._loops.values()):
            log.info("no gradients were seen: each outermost call of a model is a step.")
        collected = [step for step in status.steps if step not in status.losses]
        if status.losses and not collected:
            session.log_losses()
            # There may be a part of a step.
            return bool(status.steps) or self._log_nothing("it could not be written; see the line above.")
        if not collected:
            steps = sum(loop.steps for loop in self._loops.values())
            if session.starts and status.is_selective and not failure:
                log.info(f"no NaN and no infinity in {steps} steps that were watched.")
                return True
            why = f"the program ran {steps} steps, none of them wanted."
            if session.starts:
                why = failure or "no wanted step or record was on this rank; see the lines above."
            return self._log_nothing(why)
        if self.config.is_filtered and session.are_all_empty:
            return self._log_nothing("the filters of the configuration leave no record; see the lines above.")
        which = f"step{'s' if len(collected) > 1 else ''} {numbers_text(collected)}"
        if not session.needs("record"):
            log.info(f"the calls of {which} were checked; the findings are in {self._arguments['dump_path']}.")
            return True
        until = f", step {collected[-1]} until the program failed in it," if failed and in_step else ""
        log.info(f"collected {which}{until} into {self._arguments['dump_path']}; see: {self._show_command}")
        session.log_losses()
        return True

    def _log_nothing(self, why: str) -> bool:
        log.warning(f"msprobe run collected nothing: {why}")
        return False

    def _children_text(self) -> str:
        """The processes below this one that have collected, with their steps: ``proc12 (step 0-1), rank1 (step 0)``."""
        steps: dict[str, list[int]] = {}
        for step, folder in folders_of_run(self._arguments["dump_path"], self._process):
            steps.setdefault(folder.name, []).append(step)
        shown = [f"{name} (step {numbers_text(tuple(sorted(of)))})" for name, of in steps.items()]
        return ", ".join(shown[:_MOST_SHOWN]) + (f" and {len(shown) - _MOST_SHOWN} more" if shown[_MOST_SHOWN:] else "")

    @property
    def _show_command(self) -> str:
        return f"msprobe show {shlex.quote(self.config.dump_path)}"

    def _why_nothing(self, forwards: int, has_unwatched: bool) -> str:
        """The reason why nothing was collected, with the versions that are installed and those that were tested.

        Args:
            forwards: How many calls of models were seen.
            has_unwatched: True if lines before this one say which processes could not be watched.
        """
        if self._unwatched and not self._loops:
            return " ".join(self._unwatched.values())
        if not self._loops and has_unwatched:
            return "the processes that imported a framework were not watched; see the lines above."
        if not self._loops:
            text = f"the program imported none of {', '.join(_BACKENDS)} in this process. "
            text += "Put a launcher in front: torchrun ... -m msprobe run train.py. "
            if self._follower is None:
                text += "To collect from programs that it starts, give --follow-children. "
            there = [one.installed_text() for one in FRAMEWORKS.values() if is_installed(one.module)]
            return f"{text}Installed: {', '.join(there) or 'none of them'}. Tested: {all_tested_text()}."
        text = "no call of a model was seen in this process"
        if processes.started():
            text += f", and of the {processes.started()} that it started none has collected anything so far"
        text += ". A step begins with a call of a torch.nn.Module or mindspore.nn.Cell: put a computation that has "
        text += "none into one, or collect it with a PrecisionDebugger in the script. If the program launches others, "
        text += "put the launcher in front of msprobe run, or give --follow-children. "
        if forwards:
            text = "the models that were called have no parameters. "
        text += "Calls inside of a compiled function (torch.compile, ms.jit) are not seen."
        for backend in self._loops:
            text += f" Watched: {FRAMEWORKS[backend].installed_text()} (tested: {FRAMEWORKS[backend].tested_text})."
        return " ".join([text, *self._unwatched.values()])


def _with_defaults(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a run without a configuration file."""
    defaults = {**_DEFAULTS, **_DEFAULTS_OF_TASK.get(arguments["task"], {})}
    return {key: defaults.get(key) if value is None else value for key, value in arguments.items()}


def debugger_class(backend: str) -> type[PrecisionDebugger]:
    """The `PrecisionDebugger` of a backend."""
    found: type[PrecisionDebugger] = importlib.import_module(_NAMES[backend]).PrecisionDebugger
    return found


class _Spawned:
    """Argument of a spawned process: unpickling it begins such a run."""

    def __init__(self, given: tuple[Any, ...]) -> None:
        self._given = given

    def __reduce__(self) -> Any:
        return exec, (_BEGIN_IN_CHILD, {"given": self._given})


def begin_in_child(
    config_path: str | None, arguments: dict[str, Any], step_after: str, run: str, order: tuple[int, ...], follow: bool
) -> None:
    """Collect from a process that the program has spawned; whatever is wrong, the process begins."""
    process = RunProcess(run, order)
    try:
        if RunningProgram.present is not None:
            # The server that forks processes has begun it.
            RunningProgram.present.adopt(process)
        else:
            RunningProgram(config_path, arguments, step_after, process, follow)
    except Exception as error:
        log.error(f"msprobe run collects nothing in process {os.getpid()} ({type(error).__name__}: {error}).")


def begin_followed(text: str, started: float) -> None:
    """Collect from a process that a followed program has started as a command of its own.

    What it prints may be what the program reads, so nothing is said there but what goes wrong with a step.

    Args:
        text: What the environment says.
        started: When the process has started, in seconds.

    Raises:
        Exception: it cannot be watched.
    """
    if RunningProgram.present is not None:
        return  # it was spawned, or runs a program under msprobe run itself
    importlib.import_module("numpy")
    given = environment.read(text)
    with log.collected() as lines:
        running = RunningProgram(
            given.config_path, given.arguments, given.step_after, given.process(started), follow=True
        )
    wrong = [line.text for line in lines if line.level >= log.ERROR]
    if wrong:
        running.leave()
        raise MsprobeException(wrong[0])
    log.quieten()


def _forked() -> None:
    running = RunningProgram.present
    if running is None:
        return
    try:
        running.forked()
    except Exception as error:
        log.error(f"msprobe run collects nothing in process {os.getpid()} ({type(error).__name__}: {error}).")


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)
