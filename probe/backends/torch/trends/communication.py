"""Collective communication of the program, seen at the functions of ``torch.distributed``."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, Callable

import torch
import torch.distributed

from probe.backends.protocol.trends import CommunicationListener
from probe.backends.shared.patching import Handles, plain_swap
from probe.backends.torch.guards import guarded, passed_over
from probe.common.collectives.functions import IN_PLACE
from probe.common.interfaces import Handle, Logs

_NAMES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast",
    "reduce", "gather", "scatter", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv", "barrier",
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "batch_isend_irecv",
)  # fmt: skip


class _Thread(threading.local):
    inside = False


def attach_communication(listener: CommunicationListener, logs: Logs) -> Handle:
    """See `probe.backends.protocol.Trends.attach_communication`."""
    if not torch.distributed.is_available():
        return Handles([])
    thread = _Thread()
    handles: list[Handle] = []
    for name in _NAMES:
        function = getattr(torch.distributed, name, None)
        if isinstance(function, FunctionType):
            swap = plain_swap(function, _around(name, listener, logs, thread))
            swap.install()
            handles.append(_Restore(swap))
    return Handles(handles)


class _Restore:
    def __init__(self, swap: Any) -> None:
        self.remove: Callable[[], None] = swap.restore


def _around(name: str, listener: CommunicationListener, logs: Logs, thread: _Thread) -> Callable[..., Any]:
    @passed_over
    def record(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if thread.inside:
            return body(*args, **kwargs)
        thread.inside = True
        try:
            entered = guarded(logs, name, _enter, listener, name, args, kwargs)
            result = body(*args, **kwargs)
            # Results of background communication are not there yet, and nobody waits for them here.
            done = () if result is not None and hasattr(result, "wait") else _tensors(name, args, kwargs, is_over=True)
            guarded(logs, name, listener.leave_communication, entered, done)
            return result
        finally:
            thread.inside = False

    return record


def _enter(listener: CommunicationListener, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    peer = kwargs.get("dst", kwargs.get("src", kwargs.get("group_dst", kwargs.get("group_src"))))
    if peer is None and name in ("send", "recv", "isend", "irecv", "broadcast", "reduce") and len(args) > 1:
        peer = args[1] if isinstance(args[1], int) else None
    groups = (each for each in args if isinstance(each, torch.distributed.ProcessGroup))
    group = kwargs.get("group") or next(groups, None)
    return listener.enter_communication(
        name,
        _tensors(name, args, kwargs, is_over=False),
        {"group": torch.distributed.get_world_size(group), "peer": peer},
    )


def _tensors(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], is_over: bool) -> list[torch.Tensor]:
    """The tensors of a call; before it ends not those that only it fills, whose memory may hold anything."""
    filled = () if is_over or name not in IN_PLACE else IN_PLACE[name].fills
    names = IN_PLACE[name].arguments if name in IN_PLACE else ()
    given = [value for at, value in enumerate(args) if at >= len(names) or names[at] not in filled]
    given += [value for key, value in kwargs.items() if key not in filled]
    found: list[torch.Tensor] = []
    for value in given:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [each for each in value if isinstance(each, torch.Tensor)]
    return found
