"""The group `Settings` of MSAdapter: MindSpore's switches, torch's seeds and optimizers."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from probe.backends.mindspore import settings as of_mindspore
from probe.backends.mindspore.guards import unobserved
from probe.backends.mindspore.statistics import plain_name
from probe.backends.msadapter.hooks import MODULES, torch_module
from probe.backends.protocol import AfterUpdate, AroundScaled, BeforeUpdate, DescribedModule
from probe.backends.shared.patching import Handles
from probe.backends.shared.randomness import existing_calls
from probe.backends.shared.settings import (
    SettingsForm,
    after_step,
    around_scaled,
    before_step,
    described_modules,
    dtype_counts,
    module_options,
    plain,
    torch_groups,
)
from probe.backends.shared.training import attach_calls
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.environment.gathered import FrameworkFacts
from probe.common.interfaces import Handle, RandomCall

__all__ = [
    "attach_inputs",
    "attach_updates",
    "facts",
    "model_settings",
    "modules",
    "optimizer_groups",
    "seeding_calls",
    "weights",
]


def attach_inputs(model: Any, note: Callable[[Sequence[Any], Mapping[str, Any]], None]) -> Handle:
    """Tell `note` of the arguments of each call of `model`, whose hooks may be removed while they run."""

    def before(module: Any, args: Any, kwargs: Any) -> None:
        unobserved(note, args, kwargs)

    handle: Handle = model.register_forward_pre_hook(before, with_kwargs=True)
    return handle


def facts() -> FrameworkFacts:
    """The switches and states of MindSpore, with the seed of torch's generator."""
    found = of_mindspore.facts()
    seeds = {"torch": int(torch_module().initial_seed()), **found.seeds}
    return found._replace(framework=FRAMEWORKS["msadapter"].recorded, seeds=seeds)


def attach_updates(
    before: BeforeUpdate, after: AfterUpdate | None = None, scaled: AroundScaled | None = None
) -> Handle:
    """Report the steps of all optimizers."""
    optimizers = torch_module("optim.optimizer")
    gradient = operator.attrgetter("grad")

    def attached() -> Iterator[Handle]:
        yield optimizers.register_optimizer_step_pre_hook(before_step(gradient, before))
        if after is not None:
            yield optimizers.register_optimizer_step_post_hook(after_step(gradient, after))
        if scaled is not None:
            kind = torch_module("amp.grad_scaler").GradScaler
            yield attach_calls(vars(kind).get("step"), around_scaled(scaled))

    return Handles(attached())


def optimizer_groups(optimizer: Any) -> list[dict[str, Any]]:
    """The hyper-parameters of each group."""
    return torch_groups(optimizer, _number)


def _number(value: Any) -> Any:
    if isinstance(value, torch_module().Tensor):
        return unobserved(value.item) if value.numel() == 1 else None
    return plain(value)


def model_settings(model: Any) -> Mapping[str, Any]:
    """Options of the modules, and the dtypes of the parameters."""
    dtypes = (plain_name(parameter.dtype) for _, parameter in weights(model))
    return {**module_options(model.named_modules(), model), **dtype_counts(dtypes)}


def _buffers(module: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The buffers, and the names of those that are saved."""
    found = {name: each for name, each in module._buffers.items() if isinstance(each, torch_module().Tensor)}
    return found, frozenset(found) - frozenset(module._non_persistent_buffers_set)


_FORM = SettingsForm(shape=MODULES, base=MODULES.base, buffers=_buffers)


def modules(models: Any) -> list[DescribedModule]:
    """The settings of every module, with its buffers."""
    described: list[DescribedModule] = unobserved(described_modules, _FORM, models)
    return described


def weights(model: Any) -> Sequence[tuple[str, Any]]:
    """The parameters with their names."""
    return list(model.named_parameters())


def seeding_calls() -> list[RandomCall]:
    """``torch.manual_seed`` and those of MindSpore."""
    return [*existing_calls("torch", torch_module(), ("manual_seed",)), *of_mindspore.seeding_calls()]
