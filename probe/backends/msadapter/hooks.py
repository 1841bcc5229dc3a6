"""Hooks when torch is MindSpore underneath: its functions, modules, scalers, and the way in which a program trains."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Callable

from probe.backends import torch as _torch_backend
from probe.backends.mindspore.guards import is_unobserved
from probe.backends.mindspore.hooks import training_hooks
from probe.backends.mindspore.hooks.api_hooks import async_work_types as mindspore_work_types
from probe.backends.mindspore.hooks.module_hooks import After, Before, ModuleKind
from probe.backends.mindspore.hooks.training_hooks import largest_over_ranks
from probe.backends.protocol import TrainingListener
from probe.backends.shared import api_list, training
from probe.backends.shared.api_list import Watched
from probe.backends.shared.patching import Handles, argument, plain_swap
from probe.backends.shared.training import attach_calls
from probe.backends.torch.hooks.npu_functions import npu_functions
from probe.common.callstack import leave_out
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.interfaces import Handle

__all__ = [
    "attach_gradients",
    "attach_scalers",
    "attach_training",
    "has_parameters",
    "inside",
    "largest_over_ranks",
    "optimizers",
    "outermost",
    "parameters",
    "trainable",
]


def torch_module(path: str = "") -> Any:
    """The module behind ``torch`` or ``torch.<path>``."""
    root = "mindtorch" if _is_mindtorch() else "torch"
    return importlib.import_module(f"{root}.{path}" if path else root)


def _is_mindtorch() -> bool:
    if "mindtorch" in sys.modules:
        return True
    # A process that runs recorded calls has imported neither.
    return "torch" not in sys.modules and importlib.util.find_spec("mindtorch") is not None


def proxy_of(module: Any) -> Any | None:
    """The proxy that stands before `module` under a name of its own (``torch...``), or None."""
    name = module.__name__
    proxy = sys.modules.get(name.replace("mindtorch", "torch", 1))
    # Not any module of that name: the real torch may be imported beside mindtorch.
    target = getattr(getattr(proxy, "__loader__", None), "target_name", None)
    return proxy if target == name else None


# --- api list


_LIST = os.path.join(os.path.dirname(os.path.abspath(_torch_backend.__file__)), "hooks", "api_list.yaml")
_RISK_PREFIXES = {prefix: (prefix,) for prefix in ("Functional", "Tensor", "Torch", "Distributed", "NPU")}


def watched() -> dict[str, list[Watched]]:
    """Every function of torch's list that exists, by family, also where a user's hides it by now."""
    return {
        family: [*functions, *(copy for function in functions for copy in _on_proxy(function))]
        for family, functions in _listed().items()
    }


@functools.cache
def _listed() -> dict[str, list[Watched]]:
    root = torch_module()
    owners: dict[str, Any] = {
        "functional": torch_module("nn.functional"),
        "tensor": root.Tensor,
        "torch": root,
        "distributed": torch_module("distributed"),
    }
    families = api_list.watched(_LIST, owners, in_place=("distributed",))
    families["npu"] = npu_functions()
    return api_list.told_apart(families)


def _on_proxy(watched: Watched) -> Iterator[Watched]:
    """The proxy's own attribute of this name, which hides the one of the module."""
    if isinstance(watched.owner, types.ModuleType):
        proxy = proxy_of(watched.owner)
        held = vars(proxy).get(watched.attribute) if proxy is not None else None
        if held is not None:
            yield replace(watched, owner=proxy, function=held)


def async_work_types() -> list[type]:
    """The classes of what asynchronous communication returns, torch's ``Work`` and its subclasses included."""
    work = getattr(torch_module("distributed"), "Work", None)
    found = mindspore_work_types()
    ahead = [work] if isinstance(work, type) else []
    while ahead:
        kind = ahead.pop()
        found.append(kind)
        ahead += kind.__subclasses__()
    return found


def risk_class(base: str) -> str:
    """The class of the torch function of the same name; what a user registered is always ``core``."""
    return api_list.risk_class(base, _RISK_PREFIXES)


# --- module hooks


_Module = torch_module("nn").Module

# By contract a module's stack begins where the module is called, so that it is the same as an API's on that line.
for _calling in (_Module._call_impl, _Module._wrapped_call_impl):
    leave_out(_calling.__code__)


class _AfterErrors:
    """Lets a forward hook run after an error too: mindtorch heeds that and does not offer it."""

    def __init__(self, module: Any, key: int, hook: After) -> None:
        self._kept: dict[int, Any] = getattr(module, "_forward_hooks_always_called", {})
        self._key = key
        self._kept[key] = hook

    def remove(self) -> None:
        self._kept.pop(self._key, None)


def attach_to_module(module: Any, before: Before, after: After, handles: list[Handle]) -> None:
    """Ours after the user's pre-hooks and before the user's hooks: what the forward itself got and returned."""
    first = module.register_forward_pre_hook(before, with_kwargs=True)
    handles.append(first)
    last = module.register_forward_hook(after, with_kwargs=True, prepend=True)
    handles.append(last)
    handles.append(_AfterErrors(module, last.id, after))
    # Where mindtorch asks for the key only: what is no other value than the hook is left out of copies with it.
    module._forward_pre_hooks_with_kwargs[first.id] = before
    module._forward_hooks_with_kwargs[last.id] = after


MODULES = ModuleKind(
    root=FRAMEWORKS["msadapter"].module_root,
    base=_Module,
    inside=lambda module: module.named_modules(),
    parameters=lambda module: module._parameters,
    layers=f"{_Module.__module__.rpartition('.')[0]}.",
    held=(("_parameters", "parameter"), ("_buffers", "buffer")),
    attach=attach_to_module,
)


# --- scalers


def attach_scalers(note: training.Note) -> Handle:
    """Tell `note` of every optimizer's step that goes through a scaler."""

    def step(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        training.tell_of(note, lambda: training.of_step(args, kwargs))
        return result

    kind = torch_module("amp.grad_scaler").GradScaler
    return Handles([training_hooks.attach_scalers(note), attach_calls(vars(kind).get("step"), step)])


# --- training hooks


_optimizers_of_torch = torch_module("optim.optimizer")


def attach_training(listener: TrainingListener) -> Handle:
    """Report to `listener` until the handle is removed."""

    def forward(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = argument(0, "self", args, kwargs)
        if module is None or is_unobserved():
            return body(*args, **kwargs)
        listener.enter_forward(module, training_hooks.recording())
        try:
            return body(*args, **kwargs)
        finally:
            listener.leave_forward()

    def attached() -> Iterator[Handle]:
        yield training.OptimizerSteps(_optimizers_of_torch, listener)
        yield training.attach_calls(_Module.__call__, forward)
        yield training_hooks.attach_backwards(listener, parameters)
        yield from training.attach_new_optimizers([_optimizers_of_torch.Optimizer], plain_swap, listener)

    return Handles(attached())


def attach_gradients(listener: TrainingListener) -> Handle:
    """Nothing more: `attach_training` reports all gradients, which are always returned to the program."""
    return Handles([])


def outermost(module: Any) -> Any:
    """The module that holds `module` and is held by none."""
    return training.outermost(module, _Module, _children)


def _children(module: Any) -> list[Any]:
    return training.children(module, "_modules")


def inside(module: Any) -> list[Any]:
    """The modules inside of `module`, itself not among them."""
    return [each for each in module.modules() if each is not module]


def has_parameters(module: Any) -> bool:
    """True if `module` or a module inside of it has a parameter."""
    return next(iter(module.parameters()), None) is not None


def trainable(module: Any) -> frozenset[int]:
    """The identities of the parameters of `module` that get gradients now."""
    return frozenset(id(parameter) for parameter in module.parameters() if parameter.requires_grad)


def optimizers() -> list[Any]:
    """Every optimizer that there is."""
    return training.instances(_optimizers_of_torch.Optimizer)


def parameters(optimizer: Any) -> frozenset[int]:
    """The identities of the parameters that `optimizer` updates."""
    return training.parameters_of_groups(optimizer)
