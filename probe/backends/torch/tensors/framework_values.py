"""Torch values that are no tensors in their dump.json form.

Works on any module that is called torch: the real one, or what MSAdapter puts in its place.
"""

from __future__ import annotations

import zlib
from typing import Any, Callable

from probe.common.interfaces import Entry


class FrameworkValues:
    """Describes the values of one `torch` module."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        forms: dict[str, Callable[[Any], Entry]] = {
            "Size": lambda value: {"type": "torch.Size", "value": list(value)},
            "dtype": lambda value: {"type": "torch.dtype", "value": str(value)},
            "device": lambda value: {"type": "torch.device", "value": _device(value)},
            "memory_format": lambda value: {"type": "torch.memory_format", "format": str(value).partition(".")[2]},
        }
        kinds = {getattr(torch, name, None): form for name, form in forms.items()}
        self._forms = {kind: form for kind, form in kinds.items() if isinstance(kind, type)}

    def describe(self, value: Any, key: str | None) -> Entry | None:
        """The entry of a value; ``None`` for everything that is not torch's.

        Args:
            key: The last dictionary key on the way to it.
        """
        form = self._forms.get(type(value))
        if form is not None:
            return form(value)
        if key == "device" and isinstance(value, (str, int)) and not isinstance(value, bool):
            # torch takes "cuda:0", and a number for a device of the current accelerator, wherever it takes a device.
            return {"type": "torch.device", "value": str(value)} if isinstance(value, str) else None
        name = type(value).__name__
        if name in ("ReduceOp", "RedOpType"):
            return {"type": "torch.distributed.ReduceOp", "value": _reduce_op(value)}
        if name == "ProcessGroup" or any(base.__name__ == "ProcessGroup" for base in type(value).__mro__):
            return self._process_group(value)
        if name == "P2POp":
            return self._point_to_point(value)
        return None

    def _point_to_point(self, operation: Any) -> Entry:
        """A send or receive of a batch; its tensor is still to be described."""
        group = operation.group
        if group is None:
            # PyTorch 2.5 leaves it so where none is given.
            group = self._torch.distributed.group.WORLD
        return {
            "type": "torch.distributed.P2POp",
            # A name is given too, where torch is MSAdapter's.
            "op": str(getattr(operation.op, "__name__", operation.op)),
            "peer": operation.peer,
            "tag": operation.tag,
            "group_id": group if group is None or isinstance(group, str) else self._process_group(group)["group_id"],
            "tensor": operation.tensor,
        }

    def _process_group(self, group: Any) -> Entry:
        ranks = self._torch.distributed.get_process_group_ranks(group)
        return {
            "type": "torch.ProcessGroup",
            "group_ranks": ranks,
            "group_id": f"{zlib.crc32(str(ranks).encode()):08x}",
        }


def _device(device: Any) -> str:
    # Not str(): mindtorch says "device(type=cpu)".
    return device.type if device.index is None else f"{device.type}:{device.index}"


def _reduce_op(value: Any) -> str:
    text = str(getattr(value, "op", value) if not hasattr(value, "name") else value)
    return text[text.index("RedOpType") :] if "RedOpType" in text else text
