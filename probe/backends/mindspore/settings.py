"""The group `Settings` of MindSpore: switches, seeds and hyper-parameters of a running program."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Callable, ClassVar, NamedTuple

import mindspore
from mindspore import nn
from mindspore.communication import get_group_size
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer

from probe.backends.mindspore import internals
from probe.backends.mindspore.guards import is_unobserved, unobserved, wait_for
from probe.backends.mindspore.hooks.module_hooks import CELLS
from probe.backends.mindspore.statistics import plain_name
from probe.backends.protocol import (
    AfterUpdate,
    AroundScaled,
    BeforeUpdate,
    DescribedModule,
    OptimizedParameter,
)
from probe.backends.shared.patching import Attributes, each
from probe.backends.shared.randomness import existing_calls
from probe.backends.shared.settings import (
    SettingsForm,
    described_modules,
    dtype_counts,
    module_options,
    plain,
    plain_items,
    torch_groups,
    torch_parameters,
)
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

_CONTEXT = ("mode", "device_target", "deterministic", "jit_level", "max_call_depth", "precompile_only")
_MODES = {0: "graph", 1: "pynative"}


def facts() -> FrameworkFacts:
    """The switches and random states of this process; no function of every release tells what it was built with."""
    recorded = FRAMEWORKS["mindspore"].recorded
    return FrameworkFacts(recorded, {}, _devices(), _switches(), _layout(), _seeds(), _random_states())


def _devices() -> list[str]:
    """The kind of the device; a name of it is not told."""
    target = str(mindspore.get_context("device_target"))
    return [] if target == "CPU" else [target]


def _switches() -> dict[str, Any]:
    """The context, and the number of threads."""
    found: dict[str, Any] = {}
    for name in (*_CONTEXT, "runtime_num_threads"):
        try:
            value = mindspore.get_context(name)
        except (KeyError, ValueError, RuntimeError):
            continue  # not in every release, nor on every device
        found[name] = _MODES.get(value, value) if name == "mode" else plain(value)
    return {name: value for name, value in found.items() if value is not None}


def _layout() -> dict[str, Any]:
    """The world group."""
    return {"world_size": int(get_group_size())} if internals.has_communication() else {}


def _seeds() -> dict[str, int]:
    """The global seed, and that of the generator that mint draws from."""
    seed = mindspore.get_seed()
    found = {} if seed is None else {"mindspore": int(seed)}
    return {**found, "mint": int(mindspore.initial_seed())}


def _random_states() -> dict[str, bytes]:
    """The state of the generator of mint."""
    return {"mint": unobserved(lambda: mindspore.get_rng_state().asnumpy().tobytes())}


def attach_updates(
    before: BeforeUpdate, after: AfterUpdate | None = None, scaled: AroundScaled | None = None
) -> Handle:
    """Report the calls of all optimizers; one inside of a compiled graph is not. No scaler calls an optimizer."""
    return _Updates.watched_by(_Listener(before, after))


class _Listener(NamedTuple):
    before: BeforeUpdate
    after: AfterUpdate | None


class _Updates:
    """The calls of all optimizers, replaced once for all listeners: they come and go in any order."""

    _listeners: ClassVar[list[_Listener]] = []
    _replaced: ClassVar = {nn.Optimizer: Attributes(), ExperimentalOptimizer: Attributes()}

    def __init__(self, listener: _Listener) -> None:
        self._listener = listener

    @classmethod
    def watched_by(cls, listener: _Listener) -> _Updates:
        if not cls._listeners:
            for kind, attributes in cls._replaced.items():
                # What a wrapper of the user's covers is still called by it.
                if not attributes.in_place:
                    attributes.set(kind, "__call__", cls._reported(kind.__call__))
        cls._listeners.append(listener)
        return cls(listener)

    def remove(self) -> None:
        """Report nothing more; nothing if that was done already."""
        self._listeners[:] = [other for other in self._listeners if other is not self._listener]
        if not self._listeners:
            each(attributes.remove for attributes in self._replaced.values())

    @classmethod
    def _reported(cls, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_unobserved():
                return original(self, *args, **kwargs)
            given = [*args, *kwargs.values()]
            gradients = given[0] if given and isinstance(given[0], (tuple, list)) else given
            told = list(cls._listeners)
            for listener in told:
                listener.before(self, lambda: _parameters(self, gradients))
            result = original(self, *args, **kwargs)
            for listener in told:
                if listener.after is not None and listener in cls._listeners:
                    # What fails in the background is raised here, where it belongs to the user.
                    wait_for(result)
                    listener.after(self, lambda: _parameters(self, gradients), None)
            return result

        return update


_COUNTS = ("state_step", "step_t", "global_step")
"""The attributes with the number of steps, of which an optimizer has one at most."""


def _parameters(optimizer: Any, gradients: Sequence[Any]) -> list[OptimizedParameter]:
    """The parameters of an optimizer with the gradients that it was called with, in this order."""
    counted = next((value for name in _COUNTS if (value := getattr(optimizer, name, None)) is not None), None)
    given = {id(parameter): gradient for parameter, gradient in zip(optimizer.parameters, gradients)}
    if isinstance(optimizer, ExperimentalOptimizer):
        in_groups = torch_parameters(optimizer, lambda parameter: given.get(id(parameter)))
        return [each._replace(name=each.value.name, state_step=counted) for each in in_groups]
    found: list[OptimizedParameter] = []
    for group, (_, members) in enumerate(_groups(optimizer)):
        for at in members:
            parameter = optimizer.parameters[at]
            found.append(OptimizedParameter(group, parameter.name, parameter, given.get(id(parameter)), counted))
    return found


_OPTIONS = ("momentum", "beta1", "beta2", "eps", "use_nesterov", "use_locking", "loss_scale", "dampening", "nesterov")


def optimizer_groups(optimizer: Any) -> list[dict[str, Any]]:
    """The hyper-parameters of each group; MindSpore keeps them by parameter, so that equal neighbours are one group."""
    if isinstance(optimizer, ExperimentalOptimizer):
        return torch_groups(optimizer, _number)
    options = plain_items(((name, getattr(optimizer, name, None)) for name in _OPTIONS), _number)
    return [
        {
            **options,
            **plain_items(settings.items(), lambda value: _scheduled(value, optimizer)),
            "parameters": len(members),
        }
        for settings, members in _groups(optimizer)
    ]


def _groups(optimizer: Any) -> list[tuple[dict[str, Any], list[int]]]:
    """The learning rate and the weight decay of each group, and the indices of its parameters."""
    many = len(optimizer.parameters)
    rates = list(optimizer.learning_rate) if optimizer.is_group_lr else [optimizer.learning_rate] * many
    decays = list(optimizer.weight_decay) if optimizer.is_group else [optimizer.weight_decay] * many
    found: list[tuple[dict[str, Any], list[int]]] = []
    known: Any = None
    for at, both in enumerate(zip(rates, decays)):
        # Of two schedules it cannot be told whether they are equal.
        key = [id(each) if isinstance(each, nn.Cell) else _number(each) for each in both]
        if key != known:
            found.append((dict(zip(("lr", "weight_decay"), both)), []))
            known = key
        found[-1][1].append(at)
    return found


def _scheduled(value: Any, optimizer: Any) -> Any:
    """A number, or that of a schedule in the step that follows, which a device would have to be waited for to know."""
    if not isinstance(value, nn.Cell):
        return _number(value)
    if mindspore.get_context("device_target") != "CPU":
        return None
    return _number(unobserved(value, optimizer.global_step).reshape(()))


def _number(value: Any) -> Any:
    if isinstance(value, mindspore.Tensor):
        # As text, so that the float32 nearest to 0.001 is 0.001.
        return float(str(unobserved(value.asnumpy).reshape(-1)[0])) if value.size == 1 else None
    return plain(value)


def model_settings(model: Any) -> Mapping[str, Any]:
    """Options of the cells, and the dtypes of the parameters."""
    dtypes = (plain_name(parameter.dtype) for _, parameter in weights(model))
    return {**module_options(model.cells_and_names(), model), **dtype_counts(dtypes)}


_NOT_SAVED = ("_lazy_non_persistent_buffers_set", "_non_persistent_buffers_set")
"""Attributes with the names of buffers that no checkpoint has. The property that newer releases have would make one."""


def _buffers(cell: nn.Cell) -> tuple[dict[str, Any], frozenset[str]]:
    """The tensors that a cell has as attributes or buffers and that are no parameters."""
    buffers = {name: each for name, each in getattr(cell, "_buffers", {}).items() if type(each) is mindspore.Tensor}
    own = {name: each for name, each in vars(cell).items() if type(each) is mindspore.Tensor and name[0] != "_"}
    return {**own, **buffers}, frozenset(buffers).difference(*(vars(cell).get(name) or () for name in _NOT_SAVED))


_FORM = SettingsForm(
    shape=CELLS,
    base=nn.Cell,
    common=frozenset(
        ("training", "requires_grad", "is_top_cell", "arguments_key", "mixed_precision_type", "cell_type",
         "grad_ops_label", "has_bprop", "cls_name", "cell_init_args")
    ),
    buffers=_buffers,
    hooks={"_forward_pre_hook": "forward pre-hook", "_forward_hook": "forward hook"},
    forward="construct",
)  # fmt: skip


def modules(models: Any) -> list[DescribedModule]:
    """The settings of every cell, with the tensors that are no parameters."""
    described: list[DescribedModule] = unobserved(described_modules, _FORM, models)
    return described


def weights(model: Any) -> Sequence[tuple[str, Any]]:
    """The parameters with their names."""
    return list(model.parameters_and_names())


def attach_inputs(model: Any, note: Callable[[Sequence[Any], Mapping[str, Any]], None]) -> Handle:
    """Tell `note` of the arguments of each call of `model`."""

    def before(cell: Any, args: Any, kwargs: Any) -> None:
        unobserved(note, args, kwargs)

    return _PreHook(model, model.register_forward_pre_hook(before, with_kwargs=True))


class _PreHook:
    """A hook that can be removed while the hooks of its cell run.

    MindSpore walks its dictionary of hooks itself, and only the last one can leave it meanwhile. Another one stays, and
    its function tells nobody any more.
    """

    def __init__(self, cell: Any, handle: Any) -> None:
        self._cell, self._handle = cell, handle

    def remove(self) -> None:
        hooks = getattr(self._cell, "_forward_pre_hook", None)
        # A plain dictionary raises when it changes while it is walked, wherever that is.
        if isinstance(hooks, OrderedDict) and next(reversed(hooks), None) == getattr(self._handle, "handle_id", None):
            self._handle.remove()


def seeding_calls() -> list[RandomCall]:
    """``mindspore.set_seed`` and ``mindspore.manual_seed``."""
    return existing_calls("mindspore", mindspore, ("set_seed", "manual_seed"))
