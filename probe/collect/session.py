"""One debugger's work: what each call of a training means for the step, the hooks and the sinks."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from probe.backends.protocol import FrameworkAdapter
from probe.collect.attached_hooks import AttachedHooks, check_start, unwanted_rank_text
from probe.collect.collector import Collector
from probe.collect.config_reload import ConfigReload
from probe.collect.environment import RunEnvironment
from probe.collect.process_end import ProcessEnd, tell_no_more, tell_of_forks
from probe.collect.saved_values import SavedValues
from probe.collect.sinks.configured import MakeChecker, configured_sinks, unused_numbers_text, why_it_stays
from probe.collect.sinks.sink import Discarded, EndedStep, Host, Sink, Status
from probe.collect.step import StepCounter, ask, needed, needs_of, status_of
from probe.collect.updates import UpdateRecorder
from probe.common import log
from probe.common.config.config import GRAD_PROBE
from probe.common.config.fields import Location, numbers_text, parse_new_folder
from probe.common.dump import naming
from probe.common.dump.frameworks import of_dump
from probe.common.dump.layout import process_folder
from probe.common.errors import MsprobeException
from probe.common.interfaces import JudgeStep, ModuleName

_Method = TypeVar("_Method", bound=Callable[..., Any])
FOUND_DIVERGENCE = 1
"""The exit status of a program that ends because it diverges from the golden run."""
_LAST_LINE = "All wanted data has been collected; this debugger collects nothing more. msprobe ends successfully."


def _guarded(method: _Method) -> _Method:
    """A method for the training's use: the user's mistakes reach the training, a failure of the tool does not."""

    @functools.wraps(method)
    def guarded(self: Session, *args: Any) -> Any:
        return self.guard(f"{method.__name__}()", method, self, *args)

    return guarded  # type: ignore[return-value]


class Session:
    """Serves the one `PrecisionDebugger` of a process.

    Args:
        adapter: The framework.
        config_path: The configuration file, or ``None``.
        arguments: The constructor's other arguments, which win over the file.
        make_checker: Makes what checks calls, if the configuration asks for checks.
        sinks: What receives the calls instead of the sinks that the configuration stands for.
        make_judge: Makes what compares a step with that of a golden run.

    Raises:
        MsprobeException: something in the configuration is wrong.
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        config_path: str | None,
        arguments: dict[str, Any],
        make_checker: MakeChecker,
        sinks: Sequence[Sink] | None = None,
        make_judge: Callable[[], JudgeStep] | None = None,
    ) -> None:
        self._adapter = adapter
        self._config_file = ConfigReload(config_path, arguments)
        self.config = self._config_file.config
        self.collector = Collector(self.config, adapter)
        self.sinks: list[Sink] = []
        # The guard itself, not a function around it that could fail by itself.
        self._attempt = self.collector.attempt
        self.saved = SavedValues(adapter, self.collector)
        self._hooks = AttachedHooks(adapter, self.collector)
        self._steps = StepCounter()
        self._environment = RunEnvironment(adapter, self.collector, lambda: self.status().steps)
        self._updates = UpdateRecorder(adapter, self.collector)
        self._rank: int | None = None
        self._active = False
        self._ended = False
        self.steps_are_named = True
        """True if the user named the wanted steps; if not, one that never begins is not missed."""
        self.starts = 0
        """The number of times that `start` or `save` was called."""
        self._saves = False
        """True if `save` was called."""
        self._filters_checked = False
        """True if it was logged already which names of the configuration no call has."""
        self._emptiness_checked = False
        """True if it was looked at already if the first step has any records."""
        self.are_all_empty = True
        """True as long as no step has ended of which a sink has records, or a reason to have none."""
        self._losses_logged: dict[int, str] = {}
        self.stops_program = False
        """True if the program is to end after a step that diverges from the golden run."""
        if self.config.level in ("L1", "mix"):
            log.info("Hooks for APIs are ready; they are in place between start and stop only.")
        host = Host(
            adapter, lambda: self.config, self.collector.failed, self._known_rank, self._end_for_good,
            self.collector.numbers, make_judge, self._stop_program,
        )  # fmt: skip
        for sink in configured_sinks(self.config, host, make_checker) if sinks is None else sinks:
            self.add_sink(sink)
        self._process = os.getpid()
        self._end_of_process = ProcessEnd(self._at_exit)
        tell_of_forks(self)

    @property
    def active(self) -> bool:
        """True if collection is on, between `start` and `stop`."""
        return self._active

    @property
    def current_step(self) -> int:
        return self._steps.current

    @property
    def step_wanted(self) -> bool:
        """True if the current step is to be collected, as far as its number decides it."""
        return not self.config.step or self.current_step in self.config.step

    @property
    def remaining(self) -> bool:
        """True if this step or a later one may still be collected."""
        return not self._ended and (not self.config.step or self.current_step <= self.config.step[-1])

    def guard(self, called: str, action: Callable[..., Any], *args: Any) -> Any:
        """Call `action` for the training, which `called` this; see `_guarded`."""
        try:
            return action(*args)
        except MsprobeException:
            raise
        except Exception as error:
            self.collector.failed(called, error)
            return None

    def add_sink(self, sink: Any) -> None:
        """Hand calls to `sink` too, from the next step on."""
        if not isinstance(sink, Sink):
            raise MsprobeException(f"add_sink: sink is a {type(sink).__name__}; allowed: an instance of probe.Sink.")
        if type(sink).__hash__ is not object.__hash__:
            # They are told apart by identity: two that are equal would get what one of them needs.
            text = f"add_sink: {type(sink).__name__} defines when two sinks are equal; allowed: a class that does not"
            raise MsprobeException(f"{text}, such as a dataclass with eq=False.")
        if any(sink is each for each in self.sinks):
            log.warning(f"add_sink: this {type(sink).__name__} is there already; it is not added again.")
            return
        self.sinks.append(sink)

    def needs(self, name: str) -> bool:
        """True if some sink has the need of this name; see `probe.Needs`."""
        return needed(needs_of(self.sinks), name)

    def status(self) -> Status:
        """The status of all sinks together: the steps that were written, and the losses."""
        return status_of(self.sinks, "the end of the program")

    # --- the calls of the debugger

    @_guarded
    def start(self, model: Any, token_range: Any, rank_id: Any) -> None:
        """Collect from now on, if this step and rank are wanted."""
        check_start(self._adapter, self.config.level, model, token_range, rank_id)
        self._reload_config()
        self._begin_step()
        if self._ended or not self._config_file.enabled or self.config.level == "debug":
            return
        if self._active:
            log.warning("start was called twice without stop in between; collection goes on.")
            return
        if not self._wanted(rank_id):
            return
        self._remove_what_stayed()
        self._on_environment(self._environment.gather, self.config)
        self._on_environment(self._environment.note_models, self.config, model, self.current_step)
        if not self._open_step():
            return
        self._write_environment()
        try:
            wants_casts = self._environment.wants_casts(self.config, self.current_step)
            note_cast = self._environment.note_cast if wants_casts else None
            self._hooks.attach(model, token_range, self.config.level, note_cast)
            self._updates.attach(model)
            self._active = True
            step = self.collector.step
            self._hooks.add([] if step is None else step.start(model))
            if token_range is None:
                # Not earlier: what a sink computes of the models is no call of the program.
                self.collector.collecting = True
        except BaseException:
            self._detach()
            raise

    @_guarded
    def extend(self, models: Any) -> None:
        """Collect from further models in the step that goes on; `models` are the ones before and they."""
        if self._active:
            self._hooks.extend(models)
            self._updates.note_models(models)
            self._on_environment(self._environment.note_models, self.config, models, self.current_step)

    @_guarded
    def stop(self) -> None:
        """Collect no new calls; the gradients of those collected are still taken until the step ends."""
        if self._active:
            self._attempt(self._detach)
            self._attempt(self._log_stop)
            self._flush()
        elif self.collector.step is not None:
            self._flush()
        self._write_environment()
        self._reload_config()

    @_guarded
    def step(self, loss: Any = None, grad_norm: Any = None, dump: bool = True) -> None:
        """The training step is over: end it in every sink and count on."""
        if not dump:
            if self.collector.step is None:
                return  # a pass of an engine that warms up, and nothing was collected
            log.warning(f"step(dump=False): step {self.current_step} was collected and is kept.", once="step-dump")
        try:
            self._end_step(loss, grad_norm)
        finally:
            # Whatever failed; and no call, which could fail itself.
            self._steps.ended += 1
            self._steps.begun = None
        self._reload_config()
        steps = self.config.step
        # All ranks make the same steps, and ask each other in the same ones.
        is_of_interest = not steps or self.current_step <= steps[-1] + 1
        if self.config.stop_at is not None and is_of_interest and self._any_rank_stops():
            self._end_for_good()
            raise SystemExit(FOUND_DIVERGENCE)

    def _stop_program(self) -> None:
        self.stops_program = True

    def _any_rank_stops(self) -> bool:
        """True if a rank wants the program to end: all do it after the same step, so that none waits for another."""
        training = self._adapter.training
        if training is not None and self._known_rank() is not None:
            # Where the others cannot be asked, this rank does what it found itself.
            found = self._attempt(training.largest_over_ranks, [int(self.stops_program)])
            self.stops_program = self.stops_program or bool(found and found[0])
        return self.stops_program

    @_guarded
    def end(self) -> None:
        """End a step that has begun, at the end of a ``with`` block."""
        if self._steps.begun is not None:
            self.step()

    def close(self) -> None:
        """End everything, and put everything back: a session that is closed does nothing more."""
        self._attempt(self._finish)
        self._attempt(self._hooks.remove_all)
        self._steps.begun = None
        self._ended = True
        tell_no_more(self)
        self._end_of_process.cancel()

    def set_init_step(self, step: Any) -> None:
        """Number the first step `step`."""
        if type(step) is not int or step < 0:
            raise MsprobeException(f"set_init_step: step is {step!r}; allowed: an integer from 0.")
        self._steps.first = step

    @_guarded
    def resume_at(self, step: int) -> None:
        """`set_init_step` after a `start` for which nothing has run yet; the next `start` collects the first step."""
        if self._active and not any(self.collector.numbers().values()):
            self._take_back(Discarded.STEP)
        self.set_init_step(step)

    @_guarded
    def take_back(self) -> None:
        """Leave nothing of the step that has begun: the next one gets its number."""
        self._take_back(Discarded.STEP)

    def _take_back(self, what: Discarded) -> None:
        self._detach()
        self._attempt(self._updates.detach)
        self._hooks.remove_gradients()
        step = self.collector.leave_step()
        sinks = self.sinks if what is Discarded.ALL_STEPS else step.sinks if step is not None else ()
        ask(sinks, "discard", "the end of the step", what)
        self._steps.take_back()

    @_guarded
    def restart(self) -> None:
        """Leave nothing of all steps so far, and count them from the first one again."""
        self._take_back(Discarded.ALL_STEPS)
        self.are_all_empty, self._losses_logged = True, {}
        self._steps.restart()

    def save(self, variable: Any, name: Any, save_backward: bool) -> None:
        """Record one value at level debug."""
        if self.config.level != "debug":
            log.warning(f'save does nothing at level "{self.config.level}"; set "level" to "debug".', once="save-level")
            return
        self._saves = True
        self._reload_config()
        self._begin_step()
        if self._ended or not self._config_file.enabled or not self._wanted(None):
            return
        self._on_environment(self._environment.gather, self.config)
        if self.saved.allowed(variable, name) and self._open_step():
            self._write_environment()
            self._hooks.add_gradients(self.saved.save(variable, name, save_backward))

    @_guarded
    def register_custom_api(self, owner: Any, api: Any, prefix: Any) -> None:
        """Record calls of ``owner.api``."""
        self._hooks.register(owner, api, prefix)

    @_guarded
    def restore_custom_api(self, owner: Any, api: Any) -> None:
        """Undo `register_custom_api`."""
        self._hooks.restore(owner, api)

    @_guarded
    def module_dump(self, module: Any, name: Any) -> None:
        """Record `module` itself under `name`, and no APIs, until `module_dump_end`."""
        if not self._adapter.hooks.is_module(module):
            raise MsprobeException(f"module_dump: module is a {type(module).__name__}; allowed: a module.")
        if not isinstance(name, str) or not name:
            raise MsprobeException(f"module_dump: module_name is {name!r}; allowed: a text.")
        if not self._active or self.config.level != "L1":
            log.warning("module_dump does nothing outside start and stop, nor at a level other than L1.")
            return
        base = naming.module_base(of_dump(self._adapter.framework).module_root, name, type(module).__name__)
        self._hooks.module_dump(module, ModuleName(base))

    @_guarded
    def module_dump_end(self) -> None:
        """Record APIs again, and the module no longer."""
        self._hooks.module_dump_end()

    def move_to(self, dump_path: Any) -> None:
        """Write to `dump_path` from now on; a step that has begun goes on there, after `stop`.

        Raises:
            MsprobeException: it is no path, or collection is on.
        """
        path = parse_new_folder(dump_path, Location("PrecisionDebugger.config", "dump_path"))
        if path == self.config.dump_path:
            return
        if self._active:
            raise MsprobeException(f"config.dump_path is set to {path} between start and stop; call stop() first.")
        self.begin_again()
        self._config_file.set("dump_path", path)
        self.config = dataclasses.replace(self.config, dump_path=path)
        self.collector.configure(self.config)

    @_guarded
    def begin_again(self) -> None:
        """Complete the files of a step that has begun; what is collected next belongs to the step of that number."""
        self._end_collection()

    # --- steps and ranks

    def _begin_step(self) -> None:
        self.starts += 1
        if self._steps.begun != self.current_step:
            self._steps.begin(self.config.step)

    def _known_rank(self) -> int | None:
        return self._rank if self._rank is not None else self._adapter.rank()

    def _wanted(self, rank_id: int | None) -> bool:
        """True if the current step is collected from this process."""
        steps = self.config.step
        if steps and self.current_step > steps[-1]:
            self._end_for_good()
            return False
        if steps and self.current_step not in steps:
            return False
        if self._rank is None:
            self._rank = rank_id if rank_id is not None else self._adapter.rank()
            log.set_rank(self._rank)
        if not self.config.rank or self._rank in self.config.rank:
            return True
        log.warning(unwanted_rank_text(self._rank, self.config.rank), once="no-rank" if self._rank is None else "rank")
        return False

    def _end_for_good(self) -> None:
        if not self._ended:
            self._ended = True
            self.collector.collecting = False
            log.info(_LAST_LINE)

    def _open_step(self) -> bool:
        """Begin the step in the sinks, or go on with it; false if none of them can take it, which costs it only."""
        rank, process = self._known_rank(), process_folder(self._rank)
        step = self.collector.step
        if step is None:
            return self.collector.begin_step(self.current_step, rank, process, self.sinks)
        step.rank, step.process = rank, process
        return True

    def _remove_what_stayed(self) -> None:
        """Before a step begins: what failed to be removed when the last one ended."""
        if self._hooks.are_attached:
            self._attempt(self._detach)
        if self.collector.step is None:
            self._attempt(self._hooks.remove_gradients)

    def _detach(self) -> None:
        self._active = False
        self._hooks.detach()

    # --- the end of a step

    def _flush(self) -> None:
        self._attempt(self._adapter.hooks.finish_backward)
        if self.collector.step is not None:
            self.collector.step.flush()

    def _end_step(self, loss: Any, grad_norm: Any) -> None:
        if self._active:
            self._attempt(self._log_stop)
        self._end_collection()
        ended = EndedStep(self.current_step, loss, grad_norm)
        self._attempt(ask, self.sinks, "after_step", "the end of the step", ended)
        self._write_environment()
        self._on_environment(self._environment.detach)
        if loss is not None or grad_norm is not None:
            self._attempt(self._log_unused_numbers)

    def _write_environment(self) -> None:
        self._on_environment(self._environment.write, self.config, self._rank)

    def _on_environment(self, action: Callable[..., None], *args: Any) -> None:
        self._attempt(action, *args, about="the environment of the run")

    def _end_collection(self) -> None:
        """The step is over, whether it was collected or not."""
        if self._active or self._hooks.are_attached:
            self._attempt(self._detach)
        self._attempt(self._close_step)
        self._attempt(self._leave_step)

    def _close_step(self) -> None:
        if self.collector.step is None:
            return
        self._attempt(self.saved.reset)
        self._attempt(self._updates.finish)
        self._attempt(self._updates.detach)
        self._attempt(self._flush)
        self._attempt(self._log_unmatched)
        self._attempt(self._log_empty)
        self._attempt(self._adapter.hooks.end_step)
        self._attempt(self._hooks.remove_gradients)
        self._attempt(self._leave_step)

    def _leave_step(self) -> None:
        step = self.collector.leave_step()
        if step is not None:
            self.are_all_empty = self.are_all_empty and not step.status().has_records
            try:
                step.end()
            except Exception as error:
                # The collector has left the step: only the sinks know the log of its failures now.
                if not step.failed("the end of the step", error):
                    raise

    def _finish(self) -> None:
        self._end_collection()
        ended = EndedStep(self.current_step, ends_program=True)
        self._attempt(ask, self.sinks, "after_step", "the end of the program", ended)
        self._write_environment()
        self._on_environment(self._environment.detach)
        self._attempt(self._log_unreached)
        self._attempt(self.log_losses)

    def _at_exit(self) -> None:
        self._end_of_process.cancel()
        if os.getpid() == self._process:
            self._finish()

    def forked(self) -> None:
        """A child forked in the middle of a step, such as a worker of a data loader, writes nothing: the files are its
        parent's. One that is forked before collection began may be a training process of its own.
        """
        self._process = os.getpid()
        self._steps.forked()
        if self.collector.step is not None:
            self._active = False
            self._ended = True
        self._environment.forked()
        self.collector.leave_step()
        what = Discarded.OF_PARENT_FOR_GOOD if self._ended else Discarded.OF_PARENT
        ask(self.sinks, "discard", "the fork of the process", what)

    # --- what is said of a step

    def _log_stop(self) -> None:
        step = self.collector.step
        status = Status() if step is None else step.status()
        if self.current_step in status.steps and not status.is_selective:
            log.info("Collection stopped.")

    def log_losses(self) -> None:
        """Log what could not be written, unless it was logged before."""
        status = self.status()
        if status.losses != self._losses_logged:
            self._losses_logged = dict(status.losses)
            log.error(status.losses_text(self.config.dump_path))

    def _log_unused_numbers(self) -> None:
        if not self.needs("step_numbers"):
            log.warning(unused_numbers_text(self.config), once="step-numbers")

    def _log_unmatched(self) -> None:
        """Log once which names of the configuration no call of a step has."""
        config = self.config
        if self._filters_checked or config.level == "debug" or not config.is_filtered:
            return
        lines = self.collector.unmatched()
        self._filters_checked = lines is not None
        for line in lines or ():
            log.warning(f"step {self.current_step}: {line}")

    def _log_empty(self) -> None:
        """Log once that a step which was collected has no records, for no reason that the configuration gives."""
        config = self.config
        if self._emptiness_checked or config.level == "debug":
            return
        self._emptiness_checked = True
        # `_log_unmatched` has the reason, unless no call was seen.
        if (config.module or config.api) and self._filters_checked:
            return
        step = self.collector.step
        if config.names or config.scope or config.data_mode or step is None or step.status().has_records:
            return
        what = "no module inside the model was called between start and stop, and the model itself has no record"
        if config.level != "L0":
            what = "no function that is recorded was called between start and stop"
        log.warning(f"step {self.current_step} has no records: {what}.")

    def _log_unreached(self) -> None:
        """Log which wanted steps never began, once the program is over."""
        steps = self.config.step
        if self.config.level == "debug" and self.config.task != GRAD_PROBE and not self._saves and self._steps.ended:
            log.warning('level "debug" records what save(variable, name) is given, and save was never called.')
        is_missed = self.steps_are_named and not self.stops_program
        missing = self._steps.unreached(steps) if is_missed else []
        # All ranks run the same steps.
        if missing and not (self._rank or self._adapter.rank()):
            called = "save" if self.config.level == "debug" else "start"
            text = f'"step" names {numbers_text(missing)}, where {called} was never called'
            log.warning(f"{text}: the program ran {self._steps.ran_text()}.")
        elif self.starts and steps and not missing and self.current_step > steps[-1]:
            self._end_for_good()

    def _reload_config(self) -> None:
        """Use what the configuration file says now, if it is one that may change, from the next step on."""
        self._config_file.reload()
        new = self._config_file.config
        if self.collector.step is not None or new == self.config:
            return
        why = why_it_stays(self.config, new)
        if not why:
            self.config = new
            self._filters_checked = False
            self.collector.configure(new)
        elif dataclasses.replace(new, dump_enable=self.config.dump_enable) != self.config:
            log.warning(why, once="watch-reload")
