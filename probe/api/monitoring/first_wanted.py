"""Selection that the settings of `TrainerMon` describe: modules, parameters and families that a recorder collects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probe.backends.protocol import FrameworkAdapter, trends_of
from probe.collect.sinks.trend.wanted import Wanted, WantedCommunication, first_item_name
from probe.common import log
from probe.common.dump.nearest_names import nearest
from probe.monitor.setup.first import FirstSettings, selected_index


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
