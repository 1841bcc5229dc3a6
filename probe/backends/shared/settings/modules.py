"""Settings of modules: class, plain attributes, buffers and hooks of the program, as far as frameworks are alike."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from probe.backends.protocol.settings import DescribedModule
from probe.backends.shared.models import ModuleShape, NamedModules
from probe.backends.shared.settings.plain import plain
from probe.common.callstack import OWN_FILES
from probe.common.containers import by_prefix
from probe.common.dump.naming import unused_module_base
from probe.common.environment.modules import ModuleSettings
from probe.common.environment.secrets import clean_settings

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
        of_classes[kind] = _of_class(kind, form.base)
    own = _plain_items(item for item in vars(module).items() if item[0] not in form.common)
    settings = ModuleSettings(
        kind=f"{kind.__module__}.{kind.__qualname__}",
        is_layer=kind.__module__.startswith(form.shape.layers),
        training=bool(module.training),
        values=clean_settings({**of_classes[kind], **own})[0],
        hooks=tuple(_hooks(form, module)),
    )
    return DescribedModule(name, settings, *form.buffers(module))


def _of_class(kind: type, base: type) -> Mapping[str, Any]:
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
