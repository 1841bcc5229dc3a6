"""MindSpore tensors and other MindSpore values in their dump.json form, and tensor files."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, cast

import numpy as np
from mindspore import Tensor

from probe.backends.mindspore import internals, statistics
from probe.backends.mindspore.backward_tracker import unaliased
from probe.backends.mindspore.guards import unobserved
from probe.backends.mindspore.host_memory import KNOWS_ADDRESSES, in_one_pass
from probe.backends.mindspore.statistics import KEYS, Statistics, dtype_name, to_array
from probe.backends.protocol import Source
from probe.backends.shared.choices import choices_of
from probe.backends.shared.tensors import npy_file, shows
from probe.common.dump.choices import CHOICES
from probe.common.interfaces import Entry, StatisticsMode, TensorFile

_Dtype = internals.DtypeKind
_takes_gradient = internals.requires_gradient


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def content_mark(tensor: Any) -> None:
    """None: MindSpore tells nobody of writes to a tensor."""
    return None


def memory(tensor: Tensor) -> tuple[Tensor, Tensor, None]:
    """See `probe.backends.protocol.Tensors.memory`."""
    # MindSpore tells of a view whose memory it is only by an address, for which it waits.
    known = unaliased(tensor)
    return known, known, None


def base(tensor: Tensor) -> None:
    """None: MindSpore does not tell what a view is of."""
    return None


def part(tensor: Tensor) -> None:
    """None: each tensor is a memory of its own, see `memory`."""
    return None


class MindSporeTensors:
    """The group `Tensors` of MindSpore; statistics of tensors on a device wait for `resolve`.

    Args:
        values: Describes values that are no tensors, in the place of `describe_value`.
    """

    several_outputs: tuple[type, ...] = (tuple,)

    def __init__(self, values: Callable[[Any, str | None], Entry | None] | None = None) -> None:
        self._statistics = Statistics()
        self.is_tensor = is_tensor
        self.content_mark = content_mark
        self.memory = memory
        self.counted_memory = None
        self.base = base
        self.part = part
        self.describe_value = values or describe_value
        self.tensor_file = tensor_file
        self.pending = self._statistics.pending

    def resolve(self) -> None:
        unobserved(self._statistics.resolve)

    def direct_describer(self, summary: StatisticsMode) -> Callable[[Any], Entry | None] | None:
        """See `Tensors.direct_describer`: of tensors on the CPU that one pass describes."""
        if summary.mode != "statistics" or not KNOWS_ADDRESSES:
            return None
        statistics, high_precision, sketch, nonfinite = (
            self._statistics, summary.high_precision, summary.sketch, summary.nonfinite
        )  # fmt: skip

        def describe(value: Any) -> Entry | None:
            if not isinstance(value, Tensor) or not statistics.on_host:
                return None
            try:
                found = in_one_pass(value, high_precision, sketch)
            except Exception:
                # The plain way says what it is.
                return None
            if found is None:
                return None
            entry: Entry = {"type": "mindspore.Tensor", "dtype": dtype_name(value.dtype), "shape": list(value.shape)}
            entry["Max"], entry["Min"], entry["Mean"], entry["Norm"], packed = found
            if nonfinite and shows(entry):
                return None
            if packed is not None:
                entry["sketch"] = packed
            entry["requires_grad"] = requires_grad(value)
            return entry

        return describe

    def note_choices(self, entry: Entry, indices: Tensor, source: Source | None) -> None:
        """See `Tensors.note_choices`; on a device the call is waited for."""
        entry[CHOICES] = choices_of(unobserved(to_array, indices), source, _real_numbers).packed()

    def describe_tensor(self, tensor: Tensor, summary: StatisticsMode) -> Entry:
        """The entry of any tensor. What has no statistics says why in ``not_supported``."""
        entry: Entry = {"type": "mindspore.Tensor", "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
        checksum = reason = None
        try:
            if summary.mode != "statistics":
                checksum = statistics.crc32(tensor) if summary.mode == "md5" else statistics.xor(tensor)
            if summary.mode != "xor":
                self._statistics.fill(entry, tensor, summary)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            # A kernel that this type does not have on this device. The record says so and the training goes on.
            if summary.mode != "xor":
                entry.update(dict.fromkeys(KEYS))
            reason = str(error).split("\n")[0]
        if summary.sketch and reason is None and "sketch" not in entry:
            # On a device a dtype may have a checksum and no kernels.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                self._statistics.sketch(entry, tensor)
        if summary.mode == "xor":
            entry["md5"] = checksum
        entry["requires_grad"] = requires_grad(tensor)
        if summary.mode == "md5":
            entry["md5"] = checksum
        if reason is not None:
            entry["not_supported"] = reason
        return entry


def requires_grad(tensor: Tensor) -> bool:
    """A parameter's own attribute; for any other tensor whether it is part of a gradient that is being recorded."""
    # Not by class: mindtorch has a parameter of its own. Its other tensors always say no here.
    return getattr(tensor, "requires_grad", False) is True or bool(_takes_gradient(tensor))


def tensor_file(value: Any, copied: bool) -> TensorFile | None:
    """The file of a tensor or numpy array; see `probe.backends.protocol.Tensors.tensor_file`.

    Arrays that hold neither numbers nor texts have none. On the CPU a tensor's array shares its memory.
    """
    return cast("TensorFile | None", unobserved(_tensor_file, value, copied))


def _real_numbers(tensor: Tensor) -> Any:
    """The elements as an array of real numbers; ``None`` of complex ones and booleans."""
    values = unobserved(to_array, tensor)
    # Types that numpy lacks are those of ml_dtypes.
    values = values.astype(np.float32) if values.dtype.kind == "V" else values
    return values if values.dtype.kind in "iuf" else None


def _tensor_file(value: Any, copied: bool) -> TensorFile | None:
    if not isinstance(value, np.ndarray):
        array = statistics.as_saved(value)
    elif value.dtype.kind in "biufcUS":
        array = value
    else:
        return None
    return npy_file(np.array(array, copy=True, order="C") if copied else np.asarray(array, order="C"))


def describe_value(value: Any, key: str | None) -> Entry | None:
    """MindSpore values that are not tensors; ``None`` for everything else."""
    if isinstance(value, _Dtype):
        return {"type": "mindspore.dtype", "value": dtype_name(value)}
    if type(value).__name__ == "P2POp" and isinstance(getattr(value, "group", 0), (str, type(None))):
        # Readers know the type under torch's name. A group is a name here, and no object as in MSAdapter. The tensor is
        # still to be described.
        return {
            "type": "torch.distributed.P2POp",
            "op": getattr(value.op, "__name__", str(value.op)),
            "peer": value.peer,
            "tag": value.tag,
            "group_id": value.group,
            "tensor": value.tensor,
        }
    return None
