"""Gradient scalers of MSAdapter, for watching a training: torch's, and those of MindSpore."""

from __future__ import annotations

from typing import Any, Callable

from probe.backends.mindspore.hooks import scalers as of_mindspore
from probe.backends.msadapter.torch_modules import torch_module
from probe.backends.shared import scalers
from probe.backends.shared.patching import Handles
from probe.backends.shared.training import attach_calls
from probe.common.interfaces import Handle


def attach_scalers(note: scalers.Note) -> Handle:
    """Tell `note` of every optimizer's step that goes through a scaler."""

    def step(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        scalers.tell_of(note, lambda: scalers.of_step(args, kwargs))
        return result

    kind = torch_module("amp.grad_scaler").GradScaler
    return Handles([of_mindspore.attach_scalers(note), attach_calls(vars(kind).get("step"), step)])
