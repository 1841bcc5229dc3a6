"""`TrainerMonitorV2`, the second monitor: another face over the recorder of steps."""

from __future__ import annotations

import os
from typing import Any

from probe.api.monitoring.monitor import Monitor, adapter_for, models_in
from probe.collect.sinks.trend.wanted import Wanted, WantedCommunication, Watched, second_item_name
from probe.common import log
from probe.common.errors import MsprobeException
from probe.monitor.schedule import Schedule
from probe.monitor.settings import FRAMEWORKS, MONITORS, SecondSettings, load_second
from probe.monitor.tables import TableFiles, second_layout


class TrainerMonitorV2(Monitor):
    """Monitors a training: statistics of modules, weight gradients, optimizer states and parameters.

    Args:
        config_path: The JSON file with the configuration.
        fr: ``pytorch`` or ``mindspore``; by default what the configuration says.

    Raises:
        MsprobeException: the configuration, or `fr`, is wrong.
    """

    def __init__(self, config_path: str, fr: str | None = None) -> None:
        super().__init__()
        self._settings = load_second(config_path)
        if fr is not None and fr not in FRAMEWORKS:
            raise MsprobeException(f"TrainerMonitorV2: fr is {fr!r}; allowed: {', '.join(FRAMEWORKS)}.")
        self._backend = FRAMEWORKS[fr or self._settings.framework]

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
        models = models_in(model, adapter, "start")
        if not self._enter(adapter, settings.rank, "rank"):
            return
        gradients = settings.monitor("weight_grad")
        micro = context.get("grad_acc_steps") or context.get("micro_batch_number")
        micro = micro or gradients.grad_acc_steps or gradients.micro_batch_number or 0
        folder = os.path.join(settings.output_dir, f"rank_{self._rank}")
        self._use_folder(folder)
        layout = second_layout(
            settings.start_step, settings.step_count_per_record, isinstance(model, (list, tuple)),
            gradients.monitor_mbs_grad, self._rank,
        )  # fmt: skip
        self._write_to(TableFiles(folder, layout))
        schedule = Schedule(settings.start_step, settings.step_interval, settings.collect_times, settings.stop_step)
        self._steps_by_hand = optimizer is None or not settings.patch_optimizer_step
        self._record(
            adapter, Watched(adapter, models, optimizer), wanted_of(settings, self._rank), schedule.wants,
            schedule.collected, 0, micro, counts_steps=not self._steps_by_hand,
        )  # fmt: skip

    def step(self) -> None:
        """The step of the training is over, where no optimizer tells."""
        if self._recorder is None:
            return
        if not self._steps_by_hand:
            log.warning("step() has no effect: the steps of the optimizer are counted.", once="monitor v2 step")
            return
        self._attempt("step", self._recorder.step)


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
