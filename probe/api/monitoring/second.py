"""`TrainerMonitorV2`, the second monitor: another face over the recorder of steps."""

from __future__ import annotations

import os
from typing import Any

from probe.api.monitoring.parts import AtExit, Receivers, adapter_for, as_models, check_models, is_left_out
from probe.collect.sinks.trend.recorder import TrendRecorder
from probe.collect.sinks.trend.wanted import Wanted, WantedCommunication, second_item_name
from probe.collect.sinks.trend.watched import Watched
from probe.common import log
from probe.common.errors import MsprobeException
from probe.monitor.output.tables import SecondLayout, TableFiles
from probe.monitor.schedule import Schedule
from probe.monitor.setup.second import FRAMEWORKS, MONITORS, SecondSettings, load


class TrainerMonitorV2:
    """Monitors a training: statistics of modules, weight gradients, optimizer states and parameters.

    Args:
        config_path: The JSON file with the configuration.
        fr: ``pytorch`` or ``mindspore``; by default what the configuration says.

    Raises:
        MsprobeException: the configuration, or `fr`, is wrong.
    """

    def __init__(self, config_path: str, fr: str | None = None) -> None:
        self._settings = load(config_path)
        if fr is not None and fr not in FRAMEWORKS:
            raise MsprobeException(f"TrainerMonitorV2: fr is {fr!r}; allowed: {', '.join(FRAMEWORKS)}.")
        self._backend = FRAMEWORKS[fr or self._settings.framework]
        self._recorder: TrendRecorder | None = None
        self._files: TableFiles | None = None
        self._at_exit: AtExit | None = None
        self._receivers = Receivers()
        self._steps_by_hand = True

    def start(self, model: Any = None, optimizer: Any = None, **context: Any) -> None:
        """Monitor `model` from now on.

        Args:
            model: A module, or a list of the chunks of one.
            optimizer: Its steps are those of the training, unless ``patch_optimizer_step`` is false.
            context: ``grad_acc_steps`` or ``micro_batch_number``.

        Raises:
            MsprobeException: an argument is wrong.
        """
        if self._recorder is not None:
            log.warning("start was called before; the second call has no effect.")
            return
        settings = self._settings
        adapter = adapter_for(self._backend)
        models = as_models(model)
        check_models(models, adapter, "start")
        rank = adapter.rank()
        log.set_rank(rank)
        if is_left_out(rank, settings.rank, "rank"):
            return
        gradients = settings.monitor("weight_grad")
        micro = context.get("grad_acc_steps") or context.get("micro_batch_number")
        micro = micro or gradients.grad_acc_steps or gradients.micro_batch_number or 0
        folder = os.path.join(settings.output_dir, f"rank_{rank or 0}")
        receivers = self._receivers
        receivers.set_folder(folder)
        layout = SecondLayout(
            settings.start_step, settings.step_count_per_record, isinstance(model, (list, tuple)),
            gradients.monitor_mbs_grad, rank or 0,
        )  # fmt: skip
        self._files = TableFiles(folder, layout)
        receivers.add(self._files.write)
        schedule = Schedule(settings.start_step, settings.step_interval, settings.collect_times, settings.stop_step)
        self._steps_by_hand = optimizer is None or not settings.patch_optimizer_step
        self._recorder = TrendRecorder(
            adapter, Watched(adapter, models, optimizer), wanted_of(settings, rank or 0), schedule, receivers.receive,
            receivers.failed, 0, micro, counts_steps=not self._steps_by_hand,
        )  # fmt: skip
        self._at_exit = AtExit(self.stop)

    def step(self) -> None:
        """The step of the training is over, where no optimizer tells."""
        if self._recorder is None:
            return
        if not self._steps_by_hand:
            log.warning("step() has no effect: the steps of the optimizer are counted.", once="monitor v2 step")
            return
        self._receivers.attempt("step", self._recorder.step)

    def stop(self) -> None:
        """End monitoring: put everything back, and complete the files."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            self._receivers.attempt("stop", recorder.close)
        if self._files is not None:
            self._receivers.attempt("stop", self._files.close)
            self._files = None
        if self._at_exit is not None:
            self._at_exit.cancel()


def wanted_of(settings: SecondSettings, rank: int) -> Wanted:
    """Selection that the settings describe."""
    module, gradient, optimizer, param, cc = (settings.monitor(name) for name in MONITORS)
    parts = module.targets
    ranks = cc.module_ranks
    inner = cc.cc_distribution
    communication = None
    if cc.enabled and (not ranks or rank in ranks):
        source = inner or cc
        communication = WantedCommunication(source.cc_codeline, source.cc_pre_hook, source.cc_log_only)
    return Wanted(
        ops={
            "module": module.ops,
            "gradient": gradient.ops,
            "optimizer": optimizer.ops,
            "parameter": param.ops,
            "communication": cc.ops,
        },
        eps=module.eps,
        activations=module.enabled,
        activation_gradients=module.enabled,
        is_module=lambda path: not parts or any(part in path for part in parts),
        gradients=gradient.enabled,
        each_micro_batch=gradient.monitor_mbs_grad,
        unreduced_always=False,
        states=optimizer.enabled and optimizer.mv_distribution,
        states_after=True,
        weights=param.enabled and param.param_distribution,
        communication=communication,
        item_name=second_item_name,
        as_msprobe=settings.as_msprobe,
    )
