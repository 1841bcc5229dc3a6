"""`TrainerMon`, the first monitor: a thin face over the recorder of steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

from probe.api.monitoring.monitor import ArmedDump, Monitor, adapter_for, models_in
from probe.api.rules import monitor_rules, writer
from probe.backends.protocol import FrameworkAdapter, trends_of
from probe.collect.sinks.trend.recorder import StructureRecorder
from probe.collect.sinks.trend.wanted import Wanted, WantedCommunication, Watched, first_item_name
from probe.common import log
from probe.common.dump.naming import nearest
from probe.common.dump.stack_text import frame_text
from probe.common.errors import MsprobeException, failure_text
from probe.common.report.trends import ACTIVATION, ACTIVATION_GRADIENT, REDUCED, UNREDUCED
from probe.monitor.schedule import Schedule, WatchedFile
from probe.monitor.settings import FirstSettings, load_first, selected_index
from probe.monitor.tables import TableFiles, base, first_layout, inner_key, run_folder, write_stacks, write_structure
from probe.monitor.tensorboard import EventFile


def wanted_of(settings: FirstSettings, main_grad: bool, groups: tuple[Any, ...]) -> Wanted:
    """Selection that the settings describe."""
    targets: Mapping[str, Any] = settings.targets or {}
    names = frozenset(targets)

    def is_module(path: str) -> bool:
        return settings.all_xy or path in names

    def is_parameter(name: str) -> bool:
        if not names:
            return True
        # A module selects all parameters below it.
        return name in names or any(name.startswith(f"{each}.") for each in names)

    xy, l2 = settings.xy_distribution, settings.l2_targets or {}
    communication, l2_on = settings.cc_distribution, settings.recording_l2_features
    return Wanted(
        ops=dict.fromkeys(("module", "gradient", "optimizer", "parameter", "communication"), settings.ops),
        eps=settings.eps,
        activations=xy and not settings.backward_only,
        activation_gradients=xy and not settings.forward_only,
        is_module=is_module,
        is_parameter=is_parameter,
        is_item=None if settings.as_msprobe else _items(targets),
        gradients=settings.wg_distribution,
        each_micro_batch=settings.monitor_mbs_grad,
        states=settings.mv_distribution,
        weights=settings.param_distribution,
        direction=settings.mg_direction,
        update=settings.ur_distribution and not settings.as_msprobe,
        signs=settings.grad_sign,
        gradient_sketches=settings.grad_direction and not settings.as_msprobe,
        linear=_chosen(l2.get("linear_hook"), l2_on, True),
        attention=_chosen(l2.get("attention_hook"), l2_on, False),
        router_logits=None if settings.as_msprobe else _chosen(l2.get("moe_router_logit_hook"), l2_on, False),
        router_weights=None if settings.as_msprobe else _chosen(l2.get("moe_router_weight_hook"), l2_on, False),
        order=settings.sa_order,
        communication=WantedCommunication(
            communication.cc_codeline, communication.cc_pre_hook, communication.cc_log_only
        )
        if communication.enable
        else None,
        item_name=first_item_name,
        as_msprobe=settings.as_msprobe,
        main_gradients=main_grad,
        first_of=tuple(group for group in groups if group is not None),
    )


def _items(targets: Mapping[str, Any]) -> Callable[[str, str, int], bool] | None:
    """The test of a tensor by the selections of targets; ``None`` if no target has one."""
    selected = {
        path: {role: selected_index(text) for role, text in selection.items()}
        for path, selection in targets.items()
        if selection
    }
    if not selected:
        return None

    def is_item(path: str, role: str, index: int) -> bool:
        roles = selected.get(path)
        return roles is None or (role in roles and roles[role] in (None, index))

    return is_item


def _chosen(names: Sequence[str] | None, enabled: bool, empty_means_all: bool) -> Any:
    """The test of a module's path, or of ``chunk:path``, by the names of an L2 metric."""
    if names is None or not enabled:
        return None
    wanted = frozenset(names)
    plain = frozenset(name.partition(":")[2] or name for name in names)

    def is_wanted(path: str) -> bool:
        if not wanted:
            return empty_means_all
        return path in wanted or path in plain or path.partition(":")[2] in plain

    return is_wanted


def check_targets(settings: FirstSettings, models: Sequence[Any], adapter: FrameworkAdapter) -> None:
    """Say which targets are neither modules nor parameters, with the nearest names."""
    if not settings.targets:
        return
    known: dict[str, None] = {}
    for model in models:
        known.update((path, None) for path, _ in trends_of(adapter).modules(model))
        known.update((name, None) for name, _ in trends_of(adapter).parameters(model, frozen=True))
    for target in settings.targets:
        if target not in known:
            near = nearest(target, known)
            hint = f"; nearest names: {', '.join(near)}" if near else ""
            log.warning(f'targets: "{target}" is neither a module nor a parameter of the model{hint}.')


# --- first


_KEPT = ("format", "alert", "ndigits", "step_count_per_record", "module_ranks", "print_struct", "stack_info", "rules")
"""Keys of a file that is read again which are those of the first reading."""
_DYNAMIC = "DYNAMIC_MONITOR"


def _is_dynamic() -> bool:
    """True if the configuration file is looked at while the training runs."""
    return os.environ.get(_DYNAMIC, "").lower() == "true"


def read_settings(path: str, content: Mapping[str, Any] | None = None) -> FirstSettings:
    """The settings of a configuration file; for the arguments see `probe.monitor.settings.load_first`.

    Raises:
        MsprobeException: the file cannot be read, or a value is wrong.
    """
    settings = load_first(path, content)
    if settings.alert is not None:
        monitor_rules(settings.alert, path, settings.as_msprobe)
    return settings


class TrainerMon(Monitor):
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
        self._use(read_settings(config_file_path), config_file_path, process_group, params_have_main_grad)

    @classmethod
    def from_settings(cls, settings: FirstSettings, path: str, params_have_main_grad: bool) -> TrainerMon:
        """A monitor of settings that were read and checked.

        Args:
            path: The file they are of, which may be changed while the monitor runs; empty if there is none.
            params_have_main_grad: See the class.
        """
        made = cls.__new__(cls)
        made._use(settings, path, None, params_have_main_grad)
        return made

    def _use(self, settings: FirstSettings, path: str, process_group: Any, params_have_main_grad: bool) -> None:
        super().__init__()
        self._path = path
        self._settings = settings
        self._process_group = process_group
        self._main_grad = params_have_main_grad
        self._wrapped: Any = None
        self.ops: Any = list(self._settings.ops)
        """The statistics; what is assigned has an effect from the next step on."""
        self.alerts: Any = None
        """The judge of this rank, with `callbacks`; ``None`` without the key ``alert``."""

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
        models = models_in(model, adapter, "set_monitor")
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
        TrainerMon.monitors -= self._recorder is not None
        super().stop()

    def change(self, **settings: Any) -> None:
        """Use other settings (keys of the configuration) from the next step on."""
        self._settings = replace(self._settings, **settings)
        self._restart()

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
        if not self._enter(adapter, settings.module_ranks, "module_ranks"):
            return
        self._above = base()
        self._use_folder(run_folder(self._above, self._rank, settings.append_output))
        check_targets(settings, models, adapter)
        if settings.ur_distribution and settings.as_msprobe:
            log.warning("ur_distribution: msProbe writes it to TensorBoard only; it has no effect.")
        watched = Watched(adapter, models, optimizer)
        self._dump = ArmedDump(self._folder, self.backend, watched.chunks[0])
        self._closing.append(self._dump.close)
        self._arguments = (adapter, watched, groups, grad_acc_steps)
        self._first_step: StructureRecorder | None = None
        if settings.print_struct or settings.stack_info:
            self._first_step = StructureRecorder(adapter_for(self.backend), models, self._failed)
        self._file = WatchedFile(self._path, self._file_changed) if _is_dynamic() and self._path else None
        self._has_begun = False
        """True after the first step of a recorder has begun."""
        self._again: Callable[[], None] | None = None
        """Makes another recorder when the step is over."""
        self._end = ""
        """The message with which the training ends when the step is over."""
        self._add_outputs(trends_of(adapter).members(self._process_group))
        self._collect(first, is_on=self._file is None or settings.dynamic_on)
        TrainerMon.monitors += 1

    def _collect(self, first: int, is_on: bool = True) -> None:
        adapter, watched, groups, grad_acc_steps = self._arguments
        settings = self._settings
        # With a file that turns it on, collection begins where that is seen.
        start, times = first if _is_dynamic() else settings.start_step, settings.collect_times if is_on else 0
        self._schedule = Schedule(start, settings.step_interval, times, finished=self._finished)
        wanted = wanted_of(settings, self._main_grad, groups)
        self._record(adapter, watched, wanted, self._wants, self._schedule.collected, first, grad_acc_steps)

    def _add_outputs(self, mates: tuple[int, ...]) -> None:
        settings = self._settings
        if settings.format == "csv" or settings.as_msprobe:
            self._write_to(TableFiles(self._folder, first_layout(settings.step_count_per_record, settings.ndigits)))
        elif settings.format == "tensorboard":
            events = EventFile(self._folder)
            self.add_receiver(lambda step: events.write(step, self._rank))
            self._closing.append(events.close)
        if settings.alert is not None:
            # Rules need numpy, and most monitors have none.
            from probe.monitor.alerts.actions import Alerts, LearnedRules

            rules = monitor_rules(settings.alert, self._path, settings.as_msprobe)
            keep = None
            if settings.alert.dump:
                kind = writer("anomalies of a rank", "anomaly.json")
                keep = kind(self._above, self._rank, mates, overwrites=settings.as_msprobe).add
            self.alerts = Alerts(
                settings.alert, rules or LearnedRules(settings.alert.min_history), self._rank, self._folder,
                self._dump.arm, self._stop_after, keep, settings.as_msprobe,
            )  # fmt: skip
            self.add_receiver(self.alerts.judge)
        if settings.ends_after_communication:
            text = "cc_log_only: the communication of a step is logged, and the training ends here."
            self.add_receiver(lambda step: self._ask_end(text))

    # --- while it runs

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "ops" and vars(self).get("_recorder") is not None:
            ops = self._settings.checked_ops(tuple(value), "ops", "TrainerMon.ops", ("norm",))
            self.change(ops=ops)

    def _wants(self, step: int) -> bool:
        """Work between two steps; true if the one that begins now is collected."""
        if self._has_begun:
            self._write_first_step()
            if self._end:
                raise SystemExit(self._end)
            if self._file is not None:
                self._file.look()
            if self._again is not None:
                # The recorder that asks is replaced, and collects no more.
                again, self._again = self._again, None
                self._has_begun = False
                again()
                return False
        self._has_begun = True
        self._dump.begin(step)
        return self._schedule.wants(step)

    def _ask_end(self, text: str) -> None:
        self._end = self._end or text

    def _stop_after(self, step: int) -> None:
        text = f"monitor: step {step} is abnormal, and the action is stop: the training ends here."
        self._ask_end(f"{text} See: msprobe monitor report {self._above}")

    def _restart(self, is_on: bool = True) -> None:
        """Collect by the settings that hold now, from the next step on."""
        recorder = self._recorder
        if recorder is None:
            return

        def again() -> None:
            recorder.close()
            self._collect(recorder.step_number, is_on)

        if recorder.has_begun or _is_dynamic():
            self._again = again
        else:
            again()

    def _file_changed(self) -> None:
        try:
            settings = read_settings(self._path)
        except MsprobeException as error:
            log.warning(f"{error} The monitor goes on as before.")
            return
        was_on = self._schedule.is_left
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
        if self._file is not None:
            try:
                self._file.switch_off("dynamic_on")
            except (OSError, MsprobeException) as error:
                log.warning(f"{self._path}: dynamic_on could not be set to false: {failure_text(error)}")

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
            texts = {name: "\n".join(filter(None, map(frame_text, first.frames(name)))) for name in first.stacks}
            write_stacks(self._folder, texts)
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
                        micro = row.micro if table.has_micro else None
                        key = inner_key(family, row.name, row.chunk, micro, self._rank)
                        found[key] = dict(zip(table.ops, row.values))
        return found


@cache
def monitor_of(backend: str, module: str) -> type[TrainerMon]:
    """`TrainerMon` for the programs of one framework, as `module` names it."""
    return type("TrainerMon", (TrainerMon,), {"backend": backend, "__doc__": TrainerMon.__doc__, "__module__": module})
