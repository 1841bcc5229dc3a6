"""One debugger's work: which step it is, what is attached, where it writes."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from probe.backends.protocol import FrameworkAdapter, ReplayError, StepKeeper
from probe.collect.checking.collector import CheckingCollector
from probe.collect.collector import Collector
from probe.collect.config_reload import ConfigReload
from probe.collect.dump_folder import DumpFolder, earlier_run
from probe.collect.saved_values import SavedValues
from probe.collect.watch.collector import WatchingCollector
from probe.collect.watch.overflow_watch import OverflowWatch
from probe.collect.watch.step_ring import StepRing
from probe.common import log
from probe.common.config.config import Config
from probe.common.config.fields import numbers_text
from probe.common.dump import naming
from probe.common.dump.layout import process_folder, step_folder
from probe.common.errors import FileCheckException, MsprobeException
from probe.common.interfaces import CallChecker, Handle, ModuleName
from probe.common.recursion_limit import RaisedRecursionLimit

_Method = TypeVar("_Method", bound=Callable[..., Any])
OVERFLOW_CHECK = "overflow_check"
"""The task that watches and writes only what has a value that is not finite."""
FREE_BENCHMARK = "free_benchmark"
"""The task that runs calls again and writes what it finds."""
_LASTING = (OVERFLOW_CHECK, FREE_BENCHMARK)
"""Tasks whose configuration stays."""
MakeChecker = Callable[[Config, FrameworkAdapter], CallChecker]


def _guarded(method: _Method) -> _Method:
    """What a training calls: its own mistakes reach it, a failure of the tool does not."""

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
        make_checker: Makes what checks calls in task ``free_benchmark``.

    Raises:
        MsprobeException: something in the configuration is wrong.
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        config_path: str | None,
        arguments: dict[str, Any],
        make_checker: MakeChecker | None = None,
    ) -> None:
        self._adapter = adapter
        self._make_checker = make_checker
        self._config_file = ConfigReload(config_path, arguments)
        self.config = self._config_file.config
        self.collector = self._new_collector()
        self.saved = SavedValues(adapter, self.collector)
        self._steps = 0
        self._init_step = 0
        self._begun: int | None = None
        """The step that has begun and not ended, wanted or not."""
        self._reached: set[int] | None = None
        """The wanted steps that have begun; ``None`` before any step has begun in this process."""
        self._filters_checked = False
        """Whether it was logged already which names of the configuration no call has."""
        self._emptiness_checked = False
        """Whether it was looked at already if the first step has any records."""
        self._made_at = time.time()
        self._rank: int | None = None
        self._ended = False
        self._module_hooks_logged = False
        self._unmade: tuple[int, str] | None = None
        """The step whose files could not be made last, and why."""
        self._unwritable = ""
        """Why the folder of the last step could not be written."""
        self._opened = False
        """Whether a folder was opened already."""
        self.starts = 0
        """How often `start` or `save` was called."""
        self.collected_steps: list[int] = []
        """The steps that have a folder."""
        self._losses: dict[int, str] = {}
        """By step, what is missing of it and why."""
        self._told_losses: dict[int, str] = {}
        self._journals = False
        """Whether a step's files can be made from its journal."""
        self._active = False
        self._watch = self._new_watch()
        self._keeper = self._new_keeper()
        self._forward: list[Handle] = []
        self._modules: Handle | None = None
        """The one of `_forward` that belongs to the modules of the models."""
        self._dumped: list[Handle] = []
        self._gradients: list[Handle] = []
        self._custom: dict[tuple[int, str], Handle] = {}
        self._process = os.getpid()
        atexit.register(self._at_exit)
        self._worker_end = _at_end_of_worker(self._at_exit)
        _open_sessions.add(self)
        if self.config.level in ("L1", "mix"):
            log.info("Hooks for APIs are ready; they are in place between start and stop only.")
        if self.config.async_dump and self.config.task == "tensor":
            most = self.config.async_dump_max_mib
            log.warning(f"async_dump keeps up to {most} MiB of tensors (async_dump_max_mib) until stop or step.")

    def _new_collector(self) -> Collector:
        if self.config.task == FREE_BENCHMARK and self._make_checker is not None:
            checker = self._make_checker(self.config, self._adapter)
            return CheckingCollector(self.config, self._adapter, self._end_for_good, checker)
        kind = WatchingCollector if self.config.task == OVERFLOW_CHECK else Collector
        return kind(self.config, self._adapter, self._end_for_good)

    def _new_watch(self) -> OverflowWatch | None:
        """What decides on the steps of task ``overflow_check``."""
        if self.config.task != OVERFLOW_CHECK:
            return None
        return OverflowWatch(
            self.config, self._adapter, self.collector.failed, self.collected_steps.append, self._lose,
            self._end_for_good,
        )  # fmt: skip

    def _new_keeper(self) -> StepKeeper | None:
        """What keeps the steps that ``replay_step`` runs again."""
        config = self.config
        if self._watch is None or not config.replay_step:
            return None
        replaying = self._adapter.replaying
        if replaying is None:
            log.warning(
                f'"replay_step" does nothing with {self._adapter.framework}: gradients come of a transformation of the '
                "whole step there, and the backward of a call cannot be run again by itself."
            )
            return None
        return replaying.step_keeper(
            config.keep == "batch+params", lambda: self.collector.numbers(), lambda *of: self.collector.failed(*of)
        )

    @property
    def active(self) -> bool:
        """Whether collection is on, between `start` and `stop`."""
        return self._active

    @property
    def is_watching(self) -> bool:
        """Whether only steps with a value that is not finite get a folder."""
        return self._watch is not None

    @property
    def is_checking(self) -> bool:
        """Whether calls are checked, and none is recorded."""
        return isinstance(self.collector, CheckingCollector)

    @property
    def step_wanted(self) -> bool:
        """Whether the current step is to be collected, as far as its number decides it."""
        return not self.config.step or self.current_step in self.config.step

    @property
    def remaining(self) -> bool:
        """Whether this step or a later one may still be collected."""
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

    # --- the calls of the debugger

    @_guarded
    def start(self, model: Any, token_range: Any, rank_id: Any) -> None:
        """Collect from now on, if this step and rank are wanted."""
        self._check_start(model, token_range, rank_id)
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
        if not self._open_folder():
            return
        try:
            self._attach(model, token_range)
            self._active = True
            self._log_start()
        except BaseException:
            self._detach()
            raise

    @_guarded
    def extend(self, models: Any) -> None:
        """Collect from further models in the step that goes on; `models` are the ones before and they."""
        if self._active and self._modules is not None:
            self._forward.remove(self._modules)
            self._modules.remove()
            self._attach_modules(models)

    @_guarded
    def stop(self) -> None:
        """Collect no new calls; the gradients of those collected are still taken until the step ends."""
        if self._active:
            self._attempt(self._detach)
            if self._watch is None:
                log.info("Collection stopped.")
            self._flush()
        elif self.collector.folder is not None:
            self._flush()
        self._reload_config()

    @_guarded
    def step(self, loss: Any = None, grad_norm: Any = None) -> None:
        """The training step is over: close its files and count on; the numbers are for task ``overflow_check``."""
        if self._active or self._forward:
            self._attempt(self._detach)
        ring = self._attempt(self._ring)
        self._attempt(self._close_step)
        self._attempt(self.collector.end_step)
        if self._watch is not None:
            kept = self._attempt(self._keeper.take) if self._keeper is not None else None
            rank = self._attempt(self._known_rank)
            self._attempt(self._watch.end_step, self.current_step, rank, ring, loss, grad_norm, kept)
        elif loss is not None or grad_norm is not None:
            text = f'step(loss=, grad_norm=): task "{self.config.task}" does nothing with them'
            log.warning(f'{text}, only task "{OVERFLOW_CHECK}" does.', once="step-numbers")
        self._steps += 1
        self._begun = None
        self._reload_config()

    @_guarded
    def end(self) -> None:
        """What leaving a ``with`` block means: a step that has begun is over."""
        if self._begun is not None:
            self.step()

    def close(self) -> None:
        """End everything, and put everything back: a session that is closed does nothing more."""
        self._attempt(self._finish)
        self._attempt(self._remove, self._gradients)
        self._attempt(self._remove, list(self._custom.values()))
        self._custom.clear()
        self._begun = None
        self._ended = True
        _open_sessions.discard(self)
        atexit.unregister(self._at_exit)
        if self._worker_end is not None:
            self._worker_end.cancel()

    def set_init_step(self, step: Any) -> None:
        if type(step) is not int or step < 0:
            raise MsprobeException(f"set_init_step: step is {step!r}; allowed: an integer from 0.")
        self._init_step = step

    @_guarded
    def resume_at(self, step: int) -> None:
        """`set_init_step` after a `start` for which nothing has run yet; the next `start` collects the first step."""
        if self._active and self._is_without_records():
            self._detach()
            self.collector.abandon()
            if self._reached is not None:
                self._reached.discard(self.current_step)
            self._begun = None
        self.set_init_step(step)

    def _is_without_records(self) -> bool:
        """Whether nothing was recorded in this step yet; a folder of it is away then."""
        ring = self._ring()
        if isinstance(self.collector, CheckingCollector):
            return not self.collector.numbers()
        return self._folder.discard() if ring is None else not ring.frames

    def save(self, variable: Any, name: Any, save_backward: bool) -> None:
        """Record one value at level debug."""
        if self.config.level != "debug":
            log.warning(f'save does nothing at level "{self.config.level}"; set "level" to "debug".', once="save-level")
            return
        self._reload_config()
        self._begin_step()
        if self._ended or not self._config_file.enabled or not self._wanted(None):
            return
        if self.saved.allowed(variable, name) and self._open_folder():
            self._gradients += self.saved.save(variable, name, save_backward)

    def register_custom_api(self, owner: Any, api: Any, prefix: Any) -> None:
        if not isinstance(api, str) or not callable(getattr(owner, api, None)):
            raise MsprobeException(f"register_custom_api: {_title(owner)} has no callable {api!r}.")
        if prefix is not None and (not isinstance(prefix, str) or not prefix):
            raise MsprobeException(f"register_custom_api: api_prefix is {prefix!r}; allowed: a text or None.")
        if (id(owner), api) in self._custom:
            log.warning(f"{_title(owner)}.{api} is registered already.")
            return
        prefix = prefix or getattr(owner, "__name__", "Custom")
        try:
            handle = self._adapter.hooks.attach_custom_api(owner, api, prefix, self.collector)
        except (AttributeError, TypeError) as error:
            text = f"register_custom_api: {_title(owner)}.{api} cannot be replaced ({error})."
            raise MsprobeException(text) from error
        self._custom[id(owner), api] = handle

    def restore_custom_api(self, owner: Any, api: Any) -> None:
        handle = self._custom.pop((id(owner), api), None)
        if handle is None:
            raise MsprobeException(f"restore_custom_api: {_title(owner)}.{api} was not registered.")
        handle.remove()

    @_guarded
    def module_dump(self, module: Any, name: Any) -> None:
        """Record `module` itself under `name`, and no APIs, until `module_dump_end`."""
        if not self._adapter.hooks.is_module(module):
            raise MsprobeException(f"module_dump: module is a {type(module).__name__}; allowed: a module.")
        if not isinstance(name, str) or not name:
            raise MsprobeException(f"module_dump: dump_name is {name!r}; allowed: a text.")
        if not self._active or self.config.level != "L1":
            log.warning("module_dump does nothing outside start and stop, nor at a level other than L1.")
            return
        base = naming.module_base(self._adapter.hooks.module_root, name, self._adapter.hooks.class_name(module))
        handles = self._adapter.hooks.attach_module(module, ModuleName(base), self.collector)
        self._dumped.append(handles.forward)
        self._gradients.append(handles.gradients)
        self.collector.apis_hidden = True

    def module_dump_end(self) -> None:
        """Record APIs again, and the module no longer."""
        self.collector.apis_hidden = False
        self._attempt(self._remove, self._dumped)

    # --- steps, ranks and folders

    @property
    def current_step(self) -> int:
        return self._init_step + self._steps

    @property
    def _folder(self) -> DumpFolder:
        assert isinstance(self.collector.folder, DumpFolder)
        return self.collector.folder

    def _ring(self) -> StepRing | None:
        """The records of the step, where they are in memory."""
        return self.collector.folder if isinstance(self.collector.folder, StepRing) else None

    def _known_rank(self) -> int | None:
        return self._rank if self._rank is not None else self._adapter.training.rank()

    def _begin_step(self) -> None:
        self.starts += 1
        step = self.current_step
        if self._begun == step:
            return
        self._begun = step
        self._reached = self._reached or set()
        if step in self.config.step:
            self._reached.add(step)

    def _wanted(self, rank_id: int | None) -> bool:
        steps = self.config.step
        if steps and self.current_step > steps[-1]:
            self._end_for_good()
            return False
        if steps and self.current_step not in steps:
            return False
        if self._rank is None:
            self._rank = rank_id if rank_id is not None else self._adapter.training.rank()
            log.set_rank(self._rank)
        if self.config.rank and self._rank not in self.config.rank:
            ranks = numbers_text(self.config.rank)
            if self._rank is None:
                log.warning(
                    f'this process has no rank, and "rank" is {ranks}: nothing is collected here. Leave "rank" out, or '
                    f"give it one with start(rank_id={self.config.rank[0]}).",
                    once="no-rank",
                )
            else:
                text = f'rank {self._rank} is not in "rank", which is {ranks}: nothing is collected here.'
                log.warning(text, once="rank")
            return False
        return True

    def _end_for_good(self) -> None:
        if not self._ended:
            self._ended = True
            self.collector.collecting = False
            text = "All wanted data has been collected; this debugger collects nothing more."
            line = "*" * (len(text) + 4)
            for part in (line, f"* {text} *", line):
                log.info(part)

    def _open_folder(self) -> bool:
        """Make the folder of this step and rank ready; false if it cannot be written, which costs the step only."""
        if isinstance(self.collector, WatchingCollector):
            if self.collector.folder is None:
                self.collector.begin_ring(self.current_step, self._known_rank())
            return True
        process = process_folder(self._rank)
        if isinstance(self.collector, CheckingCollector):
            if self.collector.folder is None:
                step, root = self.current_step, os.path.abspath(self.config.dump_path)
                self.collector.begin_checks(step, self._known_rank(), os.path.join(root, step_folder(step), process))
                self.collected_steps.append(step)
            return True
        folder = self.collector.folder
        if folder is None:
            config = self.config
            with_tensors = config.task == "tensor" or (config.task == "statistics" and bool(config.tensor_list))
            try:
                opened = DumpFolder(config, self.current_step, process, self._adapter.framework, with_tensors)
            except (OSError, FileCheckException) as error:
                if isinstance(error, FileCheckException) and error.__cause__ is None and not self._opened:
                    raise  # not what the system did, but a path that is wrong from the beginning
                self._log_unwritable(error)
                return False
            self._unwritable = ""
            first, self._opened = not self._opened, True
            self.collected_steps.append(self.current_step)
            try:
                self.collector.begin_step(opened)
            except Exception as error:
                opened.log_error(f"the beginning of step {self.current_step}", error)
                opened.close()
                return False
            except BaseException:
                opened.close()
                raise
            if first:
                self._attempt(self._log_earlier_run, opened)
        elif os.path.basename(self._folder.path) != process:
            self._folder.rename(process)
        return True

    def _log_start(self) -> None:
        if isinstance(self.collector, CheckingCollector):
            log.info(f"The calls of step {self.current_step} are checked.")
        elif self._watch is None:
            target = os.path.abspath(self._folder.path)
            log.info(f"Collection of step {self.current_step} starts; the data goes to {target}.")
        elif not self._opened:
            self._opened = True
            target = os.path.abspath(self.config.dump_path)
            log.info(f"Watching for values that are not finite; a step that has some is written to {target}.")

    def _log_earlier_run(self, folder: DumpFolder) -> None:
        # All ranks find the same.
        earlier = "" if self._rank else earlier_run(folder, self._made_at)
        if earlier:
            root = os.path.dirname(folder.step_path)
            log.warning(f"{root} holds an earlier run already: {earlier}. This one goes to {folder.relative}.")

    def _log_unwritable(self, error: Exception) -> None:
        self._lose(self.current_step, "the folder could not be made", error)
        # Once, and not at each of ten thousand steps, while the reason is the same.
        reason = type(error).__name__ if not isinstance(error, OSError) else str(error.errno)
        if reason != self._unwritable:
            self._unwritable = reason
            text = f"step {self.current_step} is not collected: its folder cannot be written ({error})."
            log.error(f"{text} Nor are later ones, as long as that is so; the training goes on.")

    def _attempt(self, action: Callable[..., Any], *args: Any) -> Any:
        """Do one of several things of which each has to be done, also when another one fails."""
        try:
            return action(*args)
        except Exception as error:
            self.collector.failed(getattr(action, "__qualname__", "the end of collection"), error)
            return None

    def _flush(self) -> None:
        self._attempt(self._adapter.hooks.finish_backward)
        try:
            news = self.collector.flush()
        except Exception as error:
            self._log_unwritten(error)
        else:
            if news:
                self._log_folder()

    def _log_unwritten(self, error: Exception) -> None:
        """The training goes on; what is in the journal can still be recovered."""
        self._folder.log_error(f"the files of step {self.current_step}", error, report=False)
        # After `stop` has reported it, `step` need not do so again.
        reported, self._unmade = self._unmade, (self.current_step, str(error))
        if reported == self._unmade:
            return
        log.error(
            f"the files of step {self.current_step} cannot be written ({error}); the training goes on. If "
            f"{self._folder.path} still holds its journal, `msprobe recover` makes them from it."
        )

    def _close_step(self) -> None:
        if self.collector.folder is None:
            return
        self._attempt(self.saved.reset)
        self._attempt(self._flush)
        self._attempt(self._log_unmatched)
        self._attempt(self._log_empty)
        self._attempt(self._note_loss)
        self._attempt(self._adapter.hooks.end_step)
        self._attempt(self._remove, self._gradients)
        self._attempt(self.collector.end_step)

    def _note_loss(self) -> None:
        """The step is over: keep what is missing of it."""
        self._losses = self.losses

    def _lose(self, step: int, what: str, error: BaseException) -> None:
        # Without the path, which is another one for each step.
        reason = getattr(error, "strerror", None) or getattr(error.__cause__, "strerror", None) or error
        self._losses[step] = f"{what} ({reason})"

    @property
    def losses(self) -> dict[int, str]:
        """By step, what could not be written of it and why: of those that are over, and of the one that goes on."""
        folder = self.collector.folder
        if isinstance(folder, DumpFolder) and folder.loss:
            self._journals = self._journals or folder.is_recoverable
            return {**self._losses, self.current_step: folder.loss}
        return dict(self._losses)

    def log_losses(self) -> None:
        """Log what could not be written, unless it was logged before."""
        losses = self.losses
        if losses == self._told_losses:
            return
        self._told_losses = losses
        steps: dict[str, list[int]] = {}
        for step, loss in losses.items():
            steps.setdefault(loss, []).append(step)
        parts = [f"step{'s' if len(of) > 1 else ''} {numbers_text(of)}: {loss}" for loss, of in steps.items()]
        text = f"not everything was collected. {'; '.join(parts)}."
        if self._journals:
            root = os.path.abspath(self.config.dump_path)
            text += f" When there is room, `msprobe recover {root}` makes files from the journals."
        log.error(text)

    def _log_folder(self) -> None:
        log.info(f"{os.path.basename(self._folder.record_file)} is at {self._folder.record_file}.")

    def _log_unmatched(self) -> None:
        """Log once which names of the configuration no call of a step has."""
        config = self.config
        if self._filters_checked or config.level == "debug" or not (config.names or config.scope or config.tensor_list):
            return
        self._filters_checked = True
        lines = self.collector.unmatched()
        if lines is None:
            self._filters_checked = False
            return
        for line in lines:
            log.warning(f"step {self.current_step}: {line}")

    def _log_empty(self) -> None:
        """Log once that a step which was collected has no records, for no reason that the configuration gives."""
        config = self.config
        if self._emptiness_checked or config.level == "debug" or config.task == "structure":
            return
        self._emptiness_checked = True
        if config.names or config.scope or config.data_mode or self.collector.folder is None:
            return
        if self.collector.folder.has_records() or (self._watch is None and self._folder.failed):
            return
        what = "no module inside the model was called between start and stop, and the model itself has no record"
        if config.level != "L0":
            what = "nothing that is recorded was called between start and stop"
        log.warning(f"step {self.current_step} has no records: {what}.")

    def _log_unreached(self) -> None:
        """Log which wanted steps never began, once the program is over."""
        if self._reached is None or not self.config.step:
            return
        missing = [step for step in self.config.step if step not in self._reached]
        # All ranks run the same steps.
        if missing and not (self._rank or self._adapter.training.rank()):
            first, last = self._init_step, self.current_step - (self._begun is None)
            ran = f"1 step ({first})" if first == last else f"{last + 1 - first} steps ({first}-{last})"
            called = "save" if self.config.level == "debug" else "start"
            text = f'"step" names {numbers_text(missing)}, where {called} was never called'
            log.warning(f"{text}: the program ran {ran}.")

    # --- attaching

    def _attach(self, model: Any, token_range: Sequence[int] | None) -> None:
        hooks, collector, level = self._adapter.hooks, self.collector, self.config.level
        self._forward.append(RaisedRecursionLimit())
        if token_range is not None:
            # Before the hooks on modules: a pass has begun when the model that is one layer is recorded.
            self._forward.append(self._attach_passes(model, token_range[0], token_range[1]))
        if level in ("L0", "mix"):
            if not self._module_hooks_logged:
                self._module_hooks_logged = True
                log.info("Hooks for modules are in place between start and stop only.")
            self._attach_modules(model)
        if level == "mix":
            self._forward.append(hooks.attach_optimizer_hooks(collector))
        if level in ("L1", "mix"):
            self._forward.append(hooks.attach_apis(model, collector))
        if self._keeper is not None and model is not None:
            self._attempt(self._attach_keeper, self._keeper, model)
        if token_range is None:
            collector.collecting = True

    def _attach_keeper(self, keeper: StepKeeper, models: Any) -> None:
        try:
            self._forward.append(keeper.attach(models))
        except ReplayError as error:
            log.warning(f'"replay_step" does nothing here: {error}.', once="no-replay")

    def _attach_modules(self, models: Any) -> None:
        handles = self._adapter.hooks.attach_modules(models, self.collector)
        self._modules = handles.forward
        self._forward.append(handles.forward)
        self._gradients.append(handles.gradients)

    def _attach_passes(self, model: Any, first: int, last: int) -> Handle:
        passed = 0

        def begin() -> None:
            # What runs after a wanted pass, sampling say, belongs to it.
            if passed == first:
                self.collector.collecting = True
            elif passed > last:
                self.collector.collecting = False

        def end() -> None:
            nonlocal passed
            passed += 1

        return self._adapter.hooks.attach_passes(model, begin, end)

    def _detach(self) -> None:
        # While the collector still knows which backwards are inside of which.
        self._attempt(self._adapter.hooks.finish_backward)
        self._active = False
        self._modules = None
        self.collector.collecting = False
        self._attempt(self.module_dump_end)
        self._attempt(self.collector.leave_all)
        self._attempt(self._remove, self._forward)

    def _remove_what_stayed(self) -> None:
        """Before a step begins: what failed to be removed when the last one ended."""
        if self._forward:
            self._attempt(self._detach)
        if self._gradients and self.collector.folder is None:
            self._attempt(self._remove, self._gradients)

    def _remove(self, handles: list[Handle]) -> None:
        """Remove the last one first; what fails stays in the list, and is tried again when a step ends or begins."""
        for at in range(len(handles) - 1, -1, -1):
            remove = handles[at].remove
            try:
                remove()
            except Exception as error:
                self.collector.failed(remove.__qualname__, error)
            else:
                del handles[at]

    def _finish(self) -> None:
        if self._active or self._forward:
            self._attempt(self._detach)
        ring = self._attempt(self._ring)
        self._attempt(self._close_step)
        if self._watch is not None:
            self._attempt(self._watch.finish, self.current_step, self._known_rank(), ring)
        if self._keeper is not None:
            self._attempt(self._keeper.forget)
        self._attempt(self._log_unreached)
        self._attempt(self.log_losses)

    def _at_exit(self) -> None:
        atexit.unregister(self._at_exit)
        if os.getpid() == self._process:
            self._finish()

    def forked(self) -> None:
        """A child forked in the middle of a step, such as a worker of a data loader, writes nothing: the files are its
        parent's. One that is forked before collection began may be a training process of its own.
        """
        self._process = os.getpid()
        self._begun = None
        self._reached = None
        if self.collector.folder is not None:
            self.collector.abandon()
            self._active = False
            self._ended = True
        if self._watch is not None:
            self._watch.forget(self._ended)
        if self._keeper is not None:
            self._keeper.forget()

    # --- checks

    def _check_start(self, model: Any, token_range: Any, rank_id: Any) -> None:
        if rank_id is not None and (type(rank_id) is not int or rank_id < 0):
            raise MsprobeException(f"start: rank_id is {rank_id!r}; allowed: an integer from 0.")
        needs_model = self.config.level in ("L0", "mix")
        if needs_model or token_range is not None:
            models = model if isinstance(model, (list, tuple)) else [model]
            models = list(model.values()) if isinstance(model, dict) else models
            if not models or not all(map(self._adapter.hooks.is_module, models)):
                several = "a list or tuple that is empty or holds something else"
                given = several if isinstance(model, (list, tuple)) else f"of type {type(model).__name__}"
                given = "missing" if model is None else given
                why = f'level "{self.config.level}"' if needs_model else "token_range"
                raise MsprobeException(f"start: model is {given}; {why} needs a module, or a list or tuple of modules.")
        if token_range is not None:
            fine = isinstance(token_range, (list, tuple)) and len(token_range) == 2
            fine = fine and all(type(bound) is int and bound >= 0 for bound in token_range)
            if not fine or token_range[0] > token_range[1]:
                raise MsprobeException(f"start: token_range is {token_range!r}; allowed: [first, last], first <= last.")

    def _reload_config(self) -> None:
        """Use what the configuration file says now, if it is one that may change, from the next step on."""
        self._config_file.reload()
        if self.collector.folder is None and self.config != self._config_file.config:
            new = self._config_file.config
            lasting = next((task for task in (self.config.task, new.task) if task in _LASTING), None)
            if lasting is not None:
                # The ranks answer each other at steps on which they agreed when they began.
                if dataclasses.replace(new, dump_enable=self.config.dump_enable) != self.config:
                    text = f'the configuration of task "{lasting}" stays what it was when the program began'
                    log.warning(f"{text}; only dump_enable may change.", once="watch-reload")
                return
            self.config = new
            self._filters_checked = False
            self.collector.configure(self.config)


# Not a function of each session: what is registered there stays.
_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _forked() -> None:
    for session in list(_open_sessions):
        session.forked()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forked)


def _at_end_of_worker(action: Callable[[], None]) -> Any:
    """Have `action` called when a worker of multiprocessing ends; a forked one ends without what `atexit` knows.

    Returns:
        What can be cancelled; ``None`` in a process that is no such worker.
    """
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is None or util is None or process.parent_process() is None:
        return None
    return util.Finalize(None, action, exitpriority=0)


def _title(owner: Any) -> str:
    return str(getattr(owner, "__name__", type(owner).__name__))
