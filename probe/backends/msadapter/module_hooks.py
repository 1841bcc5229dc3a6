"""Modules when torch is MindSpore underneath: shaped like torch's, watched like a cell."""

from __future__ import annotations

from typing import Any

from probe.backends.mindspore.hooks.module_hooks import After, Before, ModuleKind
from probe.backends.msadapter.torch_modules import torch_module
from probe.common.callstack import leave_out
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.interfaces import Handle

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
