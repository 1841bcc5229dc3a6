"""Loss scalers of MindSpore, and a word among the ranks, for watching a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, cast

import numpy as np
from mindspore import Tensor, amp, mint, nn
from mindspore.communication import get_group_size

from probe.backends.mindspore.guards import unobserved
from probe.backends.mindspore.randomness.random_calls import rank
from probe.backends.protocol import ScaledUpdate
from probe.backends.shared.patching import Handles
from probe.backends.shared.scalers import Note, tell_of
from probe.backends.shared.training import attach_calls
from probe.common.interfaces import Handle


def attach_scalers(note: Note) -> Handle:
    """Tell `note` of every step that a loss scaler is asked about: `amp.DynamicLossScaler` and the cell that
    `nn.TrainOneStepWithLossScaleCell` asks, where they are not compiled.
    """

    def adjust(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        tell_of(note, lambda: _of_scaler(args[0], (*args[1:], *kwargs.values())[0]))
        return result

    def update(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = body(*args, **kwargs)
        tell_of(note, lambda: _of_cell(*args[1:], **kwargs))
        return result

    return Handles([
        attach_calls(vars(amp.DynamicLossScaler).get("adjust"), adjust),
        attach_calls(vars(nn.DynamicLossScaleUpdateCell).get("construct"), update),
    ])  # fmt: skip


def _of_scaler(scaler: Any, grads_finite: Any) -> ScaledUpdate:
    return ScaledUpdate(lambda: not bool(grads_finite), lambda: float(scaler.scale_value))


def _of_cell(loss_scale: Any, overflow: Any) -> ScaledUpdate:
    return ScaledUpdate(lambda: bool(overflow), lambda: float(loss_scale))


def largest_over_ranks(numbers: Sequence[int]) -> list[int]:
    """See `probe.backends.protocol.Training`."""
    if rank() is None or get_group_size() == 1:
        return list(numbers)
    return cast("list[int]", unobserved(_largest, numbers))


def _largest(numbers: Sequence[int]) -> list[int]:
    flags = Tensor(np.array(numbers, np.int32))
    mint.distributed.all_reduce(flags, op="max")
    return [int(flag) for flag in flags.asnumpy()]
