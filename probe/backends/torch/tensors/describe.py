"""Torch tensors and other torch values in their dump.json form, and tensor files."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from probe.backends.protocol import Source
from probe.backends.shared.tensors import crc32, npy_file, xor
from probe.backends.torch import internals
from probe.backends.torch.guards import beneath_transforms, unobserved, with_autograd_kernels
from probe.backends.torch.originals import functions, own
from probe.backends.torch.tensors import plain_tensors, statistics
from probe.backends.torch.tensors.framework_values import FrameworkValues
from probe.backends.torch.tensors.pt_file import device_file
from probe.backends.torch.tensors.pt_file import tensor_file as pt_file
from probe.backends.torch.tensors.statistics import GIVEN_BACK, KEYS, Statistics, Unsupported, whole
from probe.common.interfaces import DeviceFile, Entry, StatisticsMode, TensorFile

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter
_strided = torch.strided

_DTYPE_NAMES: dict[torch.dtype, str] = {
    value: str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)
}
_LARGEST_DENSE_COPY = 1 << 30
"""Elements; a sparse tensor that would be larger when dense gets no file."""


def is_tensor(value: Any) -> bool:
    return isinstance(value, _Tensor)


class TorchTensors:
    """The group `Tensors` of PyTorch; statistics of tensors on a device wait for `resolve`."""

    several_outputs: tuple[type, ...] = (tuple, list)

    def __init__(self) -> None:
        self._statistics = Statistics()
        self.is_tensor = is_tensor
        self.direct_describer = plain_tensors.direct_describer
        self.content_mark = plain_tensors.content_mark
        self.memory = plain_tensors.memory
        self.counted_memory: tuple[type, Any, Any, str] | None
        self.counted_memory = _Tensor, own.untyped_storage, own.is_inference, "_version"
        self.base = plain_tensors.base
        self.part = plain_tensors.part
        self.describe_value = FrameworkValues(torch).describe
        self.tensor_file = tensor_file
        self.pending = self._statistics.pending

    def resolve(self) -> None:
        unobserved(self._statistics.resolve)

    def note_choices(self, entry: Entry, indices: torch.Tensor, source: Source | None) -> None:
        """See `Tensors.note_choices`; wrappers and tensors without values have none."""
        if source is not None and (source.values.dtype.is_complex or source.values.dtype is torch.bool):
            source = source._replace(values=None)
        tensors = (indices,) if source is None or source.values is None else (indices, source.values)
        if all(_is_plain(each) and statistics.whole(each) for each in tensors):
            unobserved(self._statistics.note_choices, entry, indices, source)

    def describe_tensor(self, tensor: torch.Tensor, summary: StatisticsMode) -> Entry:
        """The entry of any tensor. What has no statistics says why in ``not_supported``."""
        if plain_tensors.describers is not None and summary.mode != "xor":
            described = plain_tensors.describers[summary.high_precision, summary.sketch](tensor)
            if described is not None:
                if summary.nonfinite:
                    statistics.note_nonfinite(described, tensor, None)
                if summary.mode == "md5":
                    described["md5"] = statistics.crc32(tensor)
                return described
        if _is_plain(tensor):
            # Nearly all are of this kind, and this takes half the time.
            if summary.mode != "xor" and (found := statistics.in_one_pass(tensor, summary)):
                largest, smallest, mean, norm, sketch = found
                entry = {
                    "type": "torch.Tensor", "dtype": _DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape),
                    "Max": largest, "Min": smallest, "Mean": mean, "Norm": norm, "requires_grad": tensor.requires_grad,
                }  # fmt: skip
                if summary.nonfinite:
                    statistics.note_nonfinite(entry, tensor, None)
                if summary.mode == "md5":
                    entry["md5"] = statistics.crc32(tensor)
                if sketch is not None:
                    entry["sketch"] = sketch
                return entry
            return self._entry(tensor, _Special("torch.Tensor", tensor), summary)
        try:
            special = _special(tensor)
        except RuntimeError as error:
            special = _Special("torch.Tensor", None, not_supported=_first_line(error))
        return self._entry(tensor, special, summary)

    def _entry(self, tensor: torch.Tensor, special: _Special, summary: StatisticsMode) -> Entry:
        entry: Entry = {
            "type": special.type_name,
            "dtype": _DTYPE_NAMES.get(tensor.dtype) or str(tensor.dtype),
            "shape": _shape(tensor),
        }
        values = special.values
        reason = special.not_supported
        try:
            if values is not None and reason is None and not whole(values):
                reason = GIVEN_BACK
            if summary.mode != "statistics" and values is not None and reason is None:
                self._statistics.checksum(entry, values, crc32 if summary.mode == "md5" else xor)
            if summary.mode == "xor":
                entry.setdefault("md5", None)
            elif values is None or reason is not None:
                entry.update(dict.fromkeys(KEYS))
            else:
                self._statistics.fill(entry, values, special.elements, summary)
        except (Unsupported, RuntimeError, NotImplementedError, TypeError) as error:
            # A kernel that this type or layout does not have. The record says so and the training goes on.
            entry.update({"md5": None} if summary.mode == "xor" else dict.fromkeys(KEYS))
            reason = _first_line(error)
        if summary.sketch and values is not None and reason is None and special.elements is None:
            # A dtype without numbers has a checksum and no sketch; zeros that stand for a gradient have no memory.
            with contextlib.suppress(RuntimeError, NotImplementedError, ValueError):
                self._statistics.sketch(entry, values)
        entry["requires_grad"] = tensor.requires_grad
        if summary.mode == "md5":
            entry["md5"] = entry.pop("md5", None)  # behind the others
        if special.more:
            entry.update(special.more)
        if reason is not None:
            entry["not_supported"] = reason
        return entry


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


class _Special(NamedTuple):
    """The way in which a tensor is described: its type's text and the dense tensor whose statistics are its own."""

    type_name: str
    values: torch.Tensor | None
    elements: int | None = None
    """Set when `values` holds only the elements that are not zero of so many."""
    more: Entry | None = None
    not_supported: str | None = None


_wrapped_by_functorch = internals.is_transformed
_of_batched_gradients = internals.is_batch_of_gradients


def is_wrapped(tensor: torch.Tensor) -> bool:
    """True if a function transform, or a batch of gradients, has put another tensor around it."""
    return bool(_wrapped_by_functorch(tensor) or _of_batched_gradients(tensor))


def _is_plain(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    return (
        (kind is _Tensor or kind is _Parameter)
        and tensor.layout is _strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and not tensor.is_nested
        and not _wrapped_by_functorch(tensor)
        and not _of_batched_gradients(tensor)
    )


def _special(tensor: torch.Tensor) -> _Special:
    kind = type(tensor)
    text = f"{kind.__module__}.{kind.__qualname__}"
    if text.endswith("functional_collectives.AsyncCollectiveTensor"):
        return _Special("torch.distributed._functional_collectives.AsyncCollectiveTensor", None)
    if text == "torch._subclasses.fake_tensor.FakeTensor":
        return _Special(text, None)
    if kind.__name__ == "DTensor" and hasattr(tensor, "_local_tensor"):
        sharded: Any = tensor
        placements = [str(placement) for placement in sharded.placements]
        more = {"device_mesh": str(sharded.device_mesh), "placements": placements}
        return _special(sharded._local_tensor)._replace(type_name="torch.distributed.tensor.DTensor", more=more)
    if is_wrapped(tensor):
        batched = _of_batched_gradients(tensor) or internals.is_batched(tensor)
        name = "BatchedTensor" if batched else "GradTrackingTensor"
        return _Special(name, None, not_supported="a tensor inside a function transform has no values of its own")
    if tensor.is_meta:
        return _Special("torch.Tensor", None)
    if tensor.is_nested:
        name = "torch.nested._internal.nested_tensor.NestedTensor"
        values = getattr(tensor, "_values", None)
        if isinstance(values, torch.Tensor):
            return _Special(name, values)  # jagged layout
        with with_autograd_kernels():
            return _Special(name, own.values(tensor))
    if kind.__torch_dispatch__ is not _Tensor.__torch_dispatch__:
        return _Special("torch.Tensor", None, not_supported=f"statistics of {text}")
    if tensor.is_quantized:
        return _Special("torch.Tensor", own.dequantize(tensor))
    if tensor.layout is torch.sparse_coo:
        with with_autograd_kernels():
            return _Special("torch.Tensor", own.values(own.coalesce(tensor)), own.numel(tensor))
    if tensor.layout is not _strided:
        with with_autograd_kernels():
            values = own.values(tensor) if "sparse" in str(tensor.layout) else own.to_dense(tensor)
        return _Special("torch.Tensor", values, own.numel(tensor))
    return _Special("torch.Tensor", tensor)


def _shape(tensor: torch.Tensor) -> list[Any]:
    try:
        shape = list(tensor.shape)
    except RuntimeError:
        # A nested tensor in strided layout has no sizes at all.
        return [None] * own.dim(tensor)
    # A ragged dimension is no number.
    return shape if type(tensor) is _Tensor else [size if type(size) is int else None for size in shape]


def tensor_file(value: Any, copied: bool) -> TensorFile | DeviceFile | None:
    """The file of a tensor or numpy array; see `probe.backends.protocol.Tensors.tensor_file`.

    Numeric arrays become tensors; arrays of texts stay arrays; any other array has no file.
    """
    return cast("TensorFile | DeviceFile | None", unobserved(_tensor_file, value, copied))


def _tensor_file(value: Any, copied: bool) -> TensorFile | DeviceFile | None:
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biufc":
            return pt_file(functions.from_numpy(np.array(value, copy=True, order="C")))
        return npy_file(np.array(value, copy=True, order="C")) if value.dtype.kind in "US" else None
    tensor = _dense(value)
    if tensor is None or own.numel(tensor) == 0 or not whole(tensor):
        return None
    if not tensor.is_cpu:
        return device_file(tensor) or pt_file(tensor)
    return pt_file(beneath_transforms(_copy, tensor) if copied else tensor)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    plain = own.resolve_neg(own.resolve_conj(tensor))
    return cast(torch.Tensor, own.clone(plain, memory_format=torch.contiguous_format))


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    # Nothing may be computed of a tensor before its kind is known: with its own dispatch out of the way a wrapper
    # subclass would give a tensor without memory, and reading that ends the process.
    if _is_plain(tensor):
        return tensor
    special = _special(tensor)
    if special.values is None or special.not_supported is not None:
        return None
    if special.elements is None:
        return special.values
    if own.numel(tensor) > _LARGEST_DENSE_COPY:
        return None
    with with_autograd_kernels():
        return cast(torch.Tensor, own.to_dense(tensor))
