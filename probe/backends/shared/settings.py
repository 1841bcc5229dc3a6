"""Settings of modules and optimizers as plain values: options, hyper-parameters, buffers and hooks."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from probe.backends.protocol import AfterUpdate, AroundScaled, BeforeUpdate, OptimizedParameter
from probe.backends.protocol.training import DescribedModule
from probe.backends.shared.models import ModuleShape, NamedModules
from probe.backends.shared.patching import Record, argument
from probe.common.callstack import OWN_FILES
from probe.common.containers import by_prefix
from probe.common.dump.naming import unused_module_base
from probe.common.environment.environment_file import ModuleSettings
from probe.common.environment.gathered import clean_settings


def torch_parameters(optimizer: Any, gradient_of: Callable[[Any], Any] | None) -> list[OptimizedParameter]:
    """The parameters of an optimizer with the groups and the state of torch.

    Args:
        optimizer: Whose parameters these are.
        gradient_of: The gradient of a parameter; ``None`` if the gradients are not known yet.
    """
    found: list[OptimizedParameter] = []
    state: Any = getattr(optimizer, "state", None)
    states: Mapping[Any, Any] = state if isinstance(state, Mapping) else {}
    for index, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or ()
        for at, parameter in enumerate(group["params"]):
            kept = states.get(parameter)
            found.append(
                OptimizedParameter(
                    index,
                    str(names[at]) if at < len(names) else "",
                    parameter,
                    None if gradient_of is None else gradient_of(parameter),
                    kept.get("step") if isinstance(kept, Mapping) else None,
                )
            )
    return found


def before_step(gradient_of: Callable[[Any], Any], before: BeforeUpdate) -> Callable[..., None]:
    """The hook before the steps of optimizers that have the hooks of torch.

    The gradients are read here, unless they are not known before the step: a closure computes them, a hook of the
    optimizer itself may change them, or a fused optimizer divides them by the scale of a gradient scaler.
    """

    def enter(optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        def parameters() -> list[OptimizedParameter]:
            # The optimizer itself is the first of the arguments.
            evaluates = callable(argument(1, "closure", args, kwargs))
            scales = getattr(optimizer, "grad_scale", None) is not None
            is_known = not (evaluates or scales or getattr(optimizer, "_optimizer_step_pre_hooks", None))
            return torch_parameters(optimizer, gradient_of if is_known else None)

        before(optimizer, parameters)

    return enter


def after_step(gradient_of: Callable[[Any], Any], after: AfterUpdate) -> Callable[..., None]:
    """The hook after the steps of optimizers that have the hooks of torch."""

    def leave(optimizer: Any, *_: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        after(optimizer, lambda: torch_parameters(optimizer, gradient_of), found_inf)

    return leave


def around_scaled(scaled: AroundScaled) -> Record:
    """The function that is called in the place of ``GradScaler.step``."""

    def step(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        optimizer = argument(1, "optimizer", args, kwargs)
        scaled(optimizer, True)
        result = body(*args, **kwargs)
        scaled(optimizer, False)
        return result

    return step


# --- plain


_MODULE_OPTIONS = (
    "p", "eps", "epsilon", "momentum", "inplace", "approximate", "negative_slope", "padding_idx", "keep_prob",
    "attention_dropout", "attn_dropout", "dropout", "is_causal", "scaling", "norm_eps", "variance_epsilon",
)  # fmt: skip
"""Attributes of modules that change numbers and are no shapes, which the parameters have already."""
_CONFIG_OPTIONS = ("_attn_implementation", "hidden_act", "rms_norm_eps", "layer_norm_eps", "rope_theta", "torch_dtype")
"""Attributes of the ``config`` that a model of Transformers has."""
_LONGEST_TEXT = 80
"""Characters of a text among settings before it is cut; a guess."""
_ABSENT = object()


def plain(value: Any) -> Any:
    """`value` as JSON has it, or ``None`` if it is no number, text, truth value or short list of these.

    NaN and infinities become texts.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, (list, tuple)) and len(value) <= 8 and all(type(each) in (int, float, bool) for each in value):
        return [plain(each) for each in value]
    return None


def plain_items(items: Iterable[tuple[str, Any]], number_of: Callable[[Any], Any] = plain) -> dict[str, Any]:
    """The items with a plain value, or with one that `number_of` makes plain."""
    found = ((name, number_of(value)) for name, value in items)
    return {str(name): value for name, value in found if value is not None}


def module_options(named_modules: Iterable[tuple[str, Any]], root: Any) -> dict[str, Any]:
    """Options of modules that change numbers, as ``layers.0.drop.p``, and those of the model's ``config``."""
    found: dict[str, Any] = {}
    for name, module in named_modules:
        options = vars(module)
        for option in _MODULE_OPTIONS:
            value = options.get(option, _ABSENT)
            if value is not _ABSENT and (value := plain(value)) is not None:
                found[f"{name}.{option}" if name else option] = value
    config = getattr(root, "config", None)
    for option in _CONFIG_OPTIONS:
        value = getattr(config, option, None)
        if value is not None:
            found[f"config.{option.lstrip('_')}"] = plain(value) if plain(value) is not None else str(value)
    return found


def dtype_counts(dtypes: Iterable[str]) -> dict[str, int]:
    """The number of parameters of each dtype, as ``parameters.float32``."""
    return {f"parameters.{name}": number for name, number in sorted(Counter(dtypes).items())}


def torch_groups(optimizer: Any, number_of: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The groups of an optimizer as torch has them."""
    groups: list[Mapping[str, Any]] = getattr(optimizer, "param_groups", [])
    return [
        {
            **plain_items(((name, value) for name, value in group.items() if name != "params"), number_of),
            "parameters": len(group["params"]),
        }
        for group in groups
    ]


# --- modules


_INSTALLED = ("site-packages", "dist-packages")
"""Folders of packages. Their hooks belong to a release; those of other code are what somebody added to this run."""


@dataclass(frozen=True)
class SettingsForm:
    """The form in which the modules of a framework have their settings; without more, that of the API of PyTorch.

    Args:
        shape: The way in which they are looked into.
        base: The class of all modules.
        buffers: Tensors of a module that are no parameters, by name, and the names of those that are saved with them.
        common: Public attributes that every module has.
        hooks: The attributes with its hooks, and the words for them.
        forward: The method that computes.
    """

    shape: ModuleShape
    base: type
    buffers: Callable[[Any], tuple[Mapping[str, Any], frozenset[str]]]
    common: frozenset[str] = frozenset(("training",))
    hooks: Mapping[str, str] = field(
        default_factory=lambda: {"_forward_pre_hooks": "forward pre-hook", "_forward_hooks": "forward hook"}
    )
    forward: str = "forward"


def described_modules(form: SettingsForm, models: Any) -> list[DescribedModule]:
    """Every module of `models`, under the names that records have, and the models themselves."""
    given = {prefix: model for prefix, model in by_prefix(models).items() if isinstance(model, form.base)}
    named, _ = NamedModules(form.shape).give(given)
    of_classes: dict[type, Mapping[str, Any]] = {}
    found = [_described(form, name.base, module, of_classes) for name, module in named]
    known = {id(module): None for _, module in named}
    used = {each.name for each in found}
    for prefix, model in given.items():
        if id(model) not in known:
            # No record has this name.
            base = unused_module_base(form.shape.root, prefix, type(model).__name__, used)
            model_itself = _described(form, base, model, of_classes)
            found.append(model_itself._replace(settings=model_itself.settings._replace(is_model=True)))
            known[id(model)] = None
            used.add(base)
    return found


def _described(
    form: SettingsForm, name: str, module: Any, of_classes: dict[type, Mapping[str, Any]]
) -> DescribedModule:
    kind = type(module)
    if kind not in of_classes:
        of_classes[kind] = _class_attributes(kind, form.base)
    own = _plain_items(item for item in vars(module).items() if item[0] not in form.common)
    settings = ModuleSettings(
        kind=f"{kind.__module__}.{kind.__qualname__}",
        is_layer=kind.__module__.startswith(form.shape.layers),
        training=bool(module.training),
        values=clean_settings({**of_classes[kind], **own})[0],
        hooks=tuple(_hooks(form, module)),
    )
    return DescribedModule(name, settings, *form.buffers(module))


def _class_attributes(kind: type, base: type) -> Mapping[str, Any]:
    """The plain attributes of a class of modules and of those it is made from."""
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        if each not in base.__mro__:
            found.update(_plain_items(vars(each).items()))
    return found


def _plain_items(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The public ones with a plain value, ``None`` included."""
    found = {name: (value, plain(value)) for name, value in items if not name.startswith("_")}
    return {name: known for name, (value, known) in found.items() if known is not None or value is None}


def _hooks(form: SettingsForm, module: Any) -> Iterable[str]:
    """The hooks on the forward of a module, and a forward of its own, that no installed package brings."""
    for attribute, word in form.hooks.items():
        for hook in tuple((getattr(module, attribute, None) or {}).values()):
            if _is_of_program(hook):
                yield f"{word} {_title(hook)}"
    own = vars(module).get(form.forward)
    if own is not None and _is_of_program(own):
        yield f"{form.forward} {_title(own)}"


def _plain_function(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


def _is_of_program(function: Any) -> bool:
    plain_one = _plain_function(function)
    # An object that is called runs the method of its class.
    code = getattr(plain_one, "__code__", None)
    if code is None:
        code = getattr(inspect.getattr_static(plain_one, "__call__", None), "__code__", None)
    if code is None:
        return False  # It is built in.
    path = os.path.abspath(code.co_filename)
    return not path.startswith(OWN_FILES) and not any(each in path.split(os.sep) for each in _INSTALLED)


def _title(function: Any) -> str:
    plain_one = _plain_function(function)
    return str(getattr(plain_one, "__qualname__", type(plain_one).__qualname__))
