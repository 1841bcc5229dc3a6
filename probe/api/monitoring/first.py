"""`TrainerMon`, the first monitor: a thin face over the recorder of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from probe.api.monitoring.armed_dump import ArmedDump
from probe.api.monitoring.control import Control, first_step_of, is_dynamic, stack_text
from probe.api.monitoring.first_wanted import check_targets, wanted_of
from probe.api.monitoring.parts import AtExit, Receivers, adapter_for, as_models, check_models, is_left_out
from probe.backends.protocol import FrameworkAdapter, trends_of
from probe.collect.sinks.trend.recorder import TrendRecorder
from probe.collect.sinks.trend.watched import Watched
from probe.common import log
from probe.common.errors import MsprobeException, failure_text
from probe.common.report.trends import ACTIVATION, ACTIVATION_GRADIENT, REDUCED, UNREDUCED, TrendStep
from probe.monitor.output.folders import base, run_folder
from probe.monitor.output.keys import row_key
from probe.monitor.output.structure import write_stacks, write_structure
from probe.monitor.output.tables import FirstLayout, TableFiles
from probe.monitor.output.tensorboard import BoardFiles
from probe.monitor.schedule import Schedule, WatchedFile
from probe.monitor.setup.first import FirstSettings, load
from probe.monitor.setup.ops import checked
from probe.monitor.setup.rewriting import switch_off

_KEPT = ("format", "alert", "ndigits", "step_count_per_record", "module_ranks", "print_struct", "stack_info", "rules")
"""Keys of a file that is read again which are those of the first reading."""


class TrainerMon:
    """Monitors a training: statistics of activations, gradients, optimizer states and weights, step by step.

    Args:
        config_file_path: The JSON file with the configuration.
        process_group: Ranks of a pipeline, by which anomalies are grouped.
        params_have_main_grad: True if Megatron keeps gradients as ``main_grad``.
        opt_ty: Accepted and without effect.

    Raises:
        MsprobeException: the configuration is wrong.
    """

    backend = "torch"
    monitors: ClassVar[int] = 0
    """Number of monitors of this process that run."""

    def __init__(
        self,
        config_file_path: str,
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: Any = None,
    ) -> None:
        self._use(load(config_file_path), config_file_path, process_group, params_have_main_grad)

    @classmethod
    def of_settings(cls, settings: FirstSettings, path: str, params_have_main_grad: bool) -> TrainerMon:
        """A monitor of settings that were read and checked.

        Args:
            path: The file they are of, which may be changed while the monitor runs; empty if there is none.
            params_have_main_grad: See the class.
        """
        made = cls.__new__(cls)
        made._use(settings, path, None, params_have_main_grad)
        return made

    def _use(self, settings: FirstSettings, path: str, process_group: Any, params_have_main_grad: bool) -> None:
        self._path = path
        self._settings = settings
        self._process_group = process_group
        self._main_grad = params_have_main_grad
        self._recorder: TrendRecorder | None = None
        self._files: TableFiles | BoardFiles | None = None
        self._at_exit: AtExit | None = None
        self._wrapped: Any = None
        self.ops: Any = list(self._settings.ops)
        """The statistics; what is assigned has an effect from the next step on."""
        self.alerts: Any = None
        """The judge of this rank, with `callbacks`; ``None`` without the key ``alert``."""
        self.steps = 0
        """The number of steps that were collected."""
        self._receivers = Receivers("")
        self._folder = ""

    # --- msProbe's calls

    def set_monitor(
        self,
        model: Any,
        optimizer: Any = None,
        grad_acc_steps: Any = 1,
        tp_group: Any = None,
        dp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Monitor `model` from now on.

        Args:
            model: A module, or a list of the chunks of one.
            optimizer: Each of its steps is one of the training. `grad_acc_steps` may stand in its place.
            grad_acc_steps: The number of micro batches of a step.
            tp_group, dp_group: Only the first rank of each writes reduced gradients.
            start_iteration: The number of the first step.

        Raises:
            MsprobeException: an argument is wrong.
        """
        if isinstance(optimizer, int) and not isinstance(grad_acc_steps, int):
            # As the documentation prints the arguments: model, grad_acc_steps, optimizer, dp_group, tp_group.
            optimizer, grad_acc_steps = grad_acc_steps, optimizer
            tp_group, dp_group = dp_group, tp_group
        if self._recorder is not None:
            log.warning("set_monitor was called before; the second call has no effect.")
            return
        adapter = adapter_for(self.backend)
        models = as_models(model)
        check_models(models, adapter, "set_monitor")
        if isinstance(grad_acc_steps, bool) or not isinstance(grad_acc_steps, int) or grad_acc_steps < 1:
            text = f"set_monitor: grad_acc_steps is {grad_acc_steps!r}; allowed: whole numbers from 1."
            raise MsprobeException(text)
        optimizer = self._wrapped if self._wrapped is not None else optimizer
        if optimizer is None:
            raise MsprobeException("set_monitor: optimizer is None; allowed: the optimizer of the training.")
        self._begin(adapter, models, optimizer, grad_acc_steps, (tp_group, dp_group), start_iteration)

    def monitor_gnorm_with_ad(
        self,
        model: Any,
        optimizer: Any = None,
        grad_acc_steps: int = 1,
        tp_group: Any = None,
        dp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """`set_monitor` under its old name."""
        log.warning("monitor_gnorm_with_ad is deprecated; use set_monitor.", once="monitor_gnorm_with_ad")
        self.set_monitor(model, optimizer, grad_acc_steps, tp_group, dp_group, start_iteration)

    def set_wrapped_optimizer(self, optimizer: Any) -> None:
        """Give the optimizer before `set_monitor`."""
        log.warning("set_wrapped_optimizer is deprecated; give it to set_monitor.", once="set_wrapped_optimizer")
        self._wrapped = optimizer

    def reload_xy(self, xy_distribution: bool = False) -> None:
        """Collect activations, or none, from the next step on."""
        log.warning("reload_xy is deprecated; change the configuration file.", once="reload_xy")
        self.change(xy_distribution=bool(xy_distribution))

    def generate_wgrad_metrics(self) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """Reduced and unreduced gradients of the step that goes on, or of the last one."""
        return self._metrics(REDUCED), self._metrics(UNREDUCED)

    def generate_xy_metrics(self) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
        """Activations and their gradients of the step that goes on, or of the last one."""
        return self._metrics(ACTIVATION), self._metrics(ACTIVATION_GRADIENT)

    # --- ours

    def stop(self) -> None:
        """End monitoring: put everything back, and complete the files."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            TrainerMon.monitors -= 1
            self._receivers.attempt("stop", recorder.close)
            self._receivers.attempt("stop", self._dump.close)
        if self._files is not None:
            self._receivers.attempt("stop", self._files.close)
        if self._at_exit is not None:
            self._at_exit.cancel()

    def add_receiver(self, receive: Any) -> None:
        """Call `receive` with each collected `probe.common.report.trends.TrendStep`, for other places than files."""
        self._receivers.add(receive)

    def change(self, **settings: Any) -> None:
        """Use other settings (keys of the configuration) from the next step on."""
        self._settings = replace(self._settings, **settings)
        self._restart()

    @property
    def folder(self) -> str:
        """The folder of this rank; empty if the rank is not monitored."""
        return self._folder

    # --- beginning

    def _begin(
        self,
        adapter: FrameworkAdapter,
        models: Sequence[Any],
        optimizer: Any,
        grad_acc_steps: int,
        groups: tuple[Any, ...],
        first: int,
    ) -> None:
        settings = self._settings
        rank = adapter.rank()
        self._rank = rank or 0
        log.set_rank(rank)
        if is_left_out(rank, settings.module_ranks, "module_ranks"):
            return
        self._above = base()
        self._folder = run_folder(self._above, self._rank, settings.append_output)
        self._receivers.set_folder(self._folder)
        check_targets(settings, models, adapter)
        if settings.ur_distribution and settings.as_msprobe:
            log.warning("ur_distribution: msProbe writes it to TensorBoard only; it has no effect.")
        watched = Watched(adapter, models, optimizer)
        self._dump = ArmedDump(self._folder, self.backend, watched.chunks[0])
        self._arguments = (adapter, watched, groups, grad_acc_steps)
        self._first_step = first_step_of(settings, models, self.backend, self._receivers.failed)
        file = WatchedFile(self._path, self._file_changed) if is_dynamic() and self._path else None
        self._control = Control(self._first_step, self._write_first_step, file, self._dump.begin)
        self._add_outputs(trends_of(adapter).members(self._process_group))
        self._recorder = self._made(first, is_on=file is None or settings.dynamic_on)
        TrainerMon.monitors += 1
        self._at_exit = AtExit(self.stop)

    def _made(self, first: int, is_on: bool = True) -> TrendRecorder:
        adapter, watched, groups, grad_acc_steps = self._arguments
        settings = self._settings
        # With a file that turns it on, collection begins where that is seen.
        start = settings.start_step if not is_dynamic() else first
        schedule = Schedule(
            start, settings.step_interval, settings.collect_times if is_on else 0, finished=self._finished
        )
        self._control.schedule = schedule
        wanted = wanted_of(settings, self._main_grad, groups)
        return TrendRecorder(
            adapter, watched, wanted, self._control, self._receivers.receive, self._receivers.failed,
            first, grad_acc_steps,
        )  # fmt: skip

    def _add_outputs(self, mates: tuple[int, ...]) -> None:
        settings = self._settings
        if settings.format == "csv" or settings.as_msprobe:
            layout = FirstLayout(settings.step_count_per_record, settings.ndigits)
            self._files = TableFiles(self._folder, layout)
        elif settings.format == "tensorboard":
            self._files = BoardFiles(self._folder, self._rank)
        if self._files is not None:
            self._receivers.add(self._files.write)
        if settings.alert is not None:
            from probe.api.monitoring.judging import Alerts

            self.alerts = Alerts(
                settings.alert, self._folder, self._above, self._rank, settings.as_msprobe, mates,
                arm_dump=self._dump.arm, stop=self._stop_after,
            )  # fmt: skip
            self._receivers.add(self.alerts.judge)
        self._receivers.add(self._count)

    # --- while it runs

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "ops" and vars(self).get("_recorder") is not None:
            ops = checked(tuple(value), "ops", "TrainerMon.ops", ("norm",), self._settings.as_msprobe)
            self.change(ops=ops)

    def _count(self, step: TrendStep) -> None:
        self.steps += 1
        if self._settings.ends_after_communication:
            self._control.ask_end("cc_log_only: the communication of a step is logged, and the training ends here.")

    def _stop_after(self, step: int) -> None:
        text = f"monitor: step {step} is abnormal, and the action is stop: the training ends here."
        self._control.ask_end(f"{text} See: msprobe monitor report {self._above}")

    def _restart(self, is_on: bool = True) -> None:
        """Collect by the settings that hold now, from the next step on."""
        recorder = self._recorder
        if recorder is None:
            return

        def again() -> None:
            recorder.close()
            self._recorder = self._made(recorder.step_number, is_on)

        if recorder.has_begun or is_dynamic():
            self._control.at_end = again
        else:
            again()

    def _file_changed(self) -> None:
        try:
            settings = load(self._path)
        except MsprobeException as error:
            log.warning(f"{error} The monitor goes on as before.")
            return
        was_on = self._control.schedule.is_left
        if not settings.dynamic_on and (settings.as_msprobe or not was_on):
            return
        kept = [name for name in _KEPT if getattr(settings, name) != getattr(self._settings, name)]
        if kept:
            log.warning(f"{self._path}: {', '.join(kept)} cannot change while the monitor runs; the old value is used.")
        self._settings = replace(settings, **{name: getattr(self._settings, name) for name in kept})
        log.info(f"{self._path} has changed; the monitor {'collects' if settings.dynamic_on else 'stops'}.")
        self._restart(settings.dynamic_on)

    def _finished(self) -> None:
        """All steps that were asked for are collected."""
        if is_dynamic() and self._path:
            try:
                switch_off(self._path, "dynamic_on")
            except (OSError, MsprobeException) as error:
                log.warning(f"{self._path}: dynamic_on could not be set to false: {failure_text(error)}")
            self._control.file_was_written()

    def _write_first_step(self) -> None:
        """The first step is over: write what was noted of it."""
        first, settings = self._first_step, self._settings
        if first is None:
            return
        self._first_step = None
        first.finish()
        if settings.print_struct:
            path = write_structure(self._above, self._rank, first.structure)
            log.info(f"The structure of the model is in {path}.")
        if settings.stack_info:
            write_stacks(self._folder, {name: stack_text(first.frames(name)) for name in first.stacks})
        if settings.print_struct and (settings.exit or settings.as_msprobe):
            raise SystemExit("print_struct: the structure of the model is written, and the training ends here.")

    def _metrics(self, family: str) -> dict[str, dict[str, Any]]:
        if self._recorder is None:
            return {}
        found: dict[str, dict[str, Any]] = {}
        for table in self._recorder.tables_now():
            if table.family == family:
                for row in table.rows:
                    if row.values is not None:
                        found[row_key(table, row, self._rank)] = dict(zip(table.ops, row.values))
        return found
