"""Entries of ordinary tensors in the host's memory, by a compiled function that need not be there.

It is built where `probe.backends.shared.tensors` is, and used where torch lends its tensors by DLPack's C exchange
interface, which old releases lack. A small tensor takes 1.0 us; 2.5 where Python asks it some twenty questions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from probe.backends.shared.tensors import KINDS, only_finite
from probe.backends.torch import internals
from probe.backends.torch.originals import own
from probe.common.interfaces import Entry, StatisticsMode

SEVERAL_THREADS_FROM = 1 << 18
"""Elements from which torch, where it may use several threads, is faster than one pass in one."""

Describe = Callable[[Any], Optional[Entry]]


def _made(
    high_precision: bool, sketch: bool = False, ops: Sequence[str] = (), eps: float = 0.0
) -> Callable[[Any], Any] | None:
    """A compiled function of a tensor; ``None`` where it is not built, or by another version of the interface."""
    try:
        from probe.backends.torch.tensors import _plain_tensors
    except ImportError:
        return None
    exchange: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    dtypes = {name: getattr(torch, name) for name in (*KINDS, "bool") if hasattr(torch, name)}
    is_wrapped = internals.is_transformed
    kinds = (torch.Tensor, torch.nn.Parameter, "torch.Tensor", dtypes, torch.strided, is_wrapped)
    # A sketch is made by one thread, and the statistics in its pass.
    most = sys.maxsize if sketch else SEVERAL_THREADS_FROM
    try:
        return _plain_tensors.Describer(
            exchange, *kinds, torch.get_num_threads, most, high_precision, sketch, tuple(ops), eps
        )
    except (TypeError, ValueError):
        return None


def _describers() -> dict[tuple[bool, bool], Describe] | None:
    made = {(precise, sketch): _made(precise, sketch) for precise in (False, True) for sketch in (False, True)}
    found = {key: each for key, each in made.items() if each is not None}
    return found if len(found) == len(made) else None


describers: dict[tuple[bool, bool], Describe] | None = _describers()
"""The entry of a tensor with its statistics. The keys tell if those of 16-bit numbers are in float32, and if the entry
has the tensor's sketch.

``None`` for values that are no tensor, and tensors that are described in another way: not dense, without elements, of
other types than `KINDS` and bool, of subclasses, with their sign still to be turned, on a device, whose memory was
given back, or without a sketch and with at least `SEVERAL_THREADS_FROM` elements where torch uses several threads.
"""


def content_mark(tensor: Any) -> tuple[Any, ...] | None:
    """See `probe.backends.protocol.Tensors.content_mark`.

    torch counts the writes to a tensor, as it has to for its own gradients. What writes behind its back, through
    ``data`` or numpy, is not counted there either. Nor are those of communication, of fused optimizers and of kernels
    that are not torch's: a parameter, or a view of one, has no mark.
    """
    # Parameters are not referred to in any way, either: torch exchanges only tensors that nobody refers to weakly.
    if type(tensor) is not torch.Tensor:
        return None
    try:
        if own._is_view(tensor) and type(tensor._base) is not torch.Tensor:
            return None
        return tensor._version, own.data_ptr(tensor), tensor.requires_grad
    except RuntimeError:
        return None  # made in inference mode, or without memory


def memory(tensor: torch.Tensor) -> tuple[Any, torch.Tensor | None, int | None] | None:
    """See `probe.backends.protocol.Tensors.memory`."""
    # The object of a storage lives as long as the storage, as that of a tensor does not. The type: see `content_mark`.
    itself = tensor if type(tensor) is torch.Tensor else None
    try:
        return own.untyped_storage(tensor), itself, None if own.is_inference(tensor) else tensor._version
    except (RuntimeError, NotImplementedError):
        return None  # inside a function transform, sparse, or of a user's class


def base(tensor: torch.Tensor) -> torch.Tensor | None:
    """See `probe.backends.protocol.Tensors.base`."""
    return tensor._base


def part(tensor: torch.Tensor) -> tuple[int, int, bool] | None:
    """See `probe.backends.protocol.Tensors.part`."""
    size = own.element_size(tensor)
    there = own.untyped_storage(tensor).nbytes()
    if own.numel(tensor) * size == there:
        return None
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, own.stride(tensor)))
    start, bytes_of_all = own.storage_offset(tensor) * size, own.numel(tensor) * size
    return start, start + (last + 1) * size, (last + 1) * size == bytes_of_all


_MEASURED = frozenset(("min", "max", "mean", "norm", "zeros", "nans"))


def row_maker(ops: Sequence[str], eps: float) -> Callable[[Any], tuple[Any, ...] | None] | None:
    """The function that measures a tensor for a monitor: the fields of `Measured`, or ``None`` of what Python measures.

    Python measures what `describers` leave out, tensors of no dimension and of booleans, NaN if they are counted, and
    zeros of types other than float32.

    Args:
        ops: The statistics, each once.
        eps: Elements of a smaller magnitude are zeros.
    """
    is_measured = 0 < len(ops) == len(set(ops)) and _MEASURED.issuperset(ops)
    return _made(True, False, ops, eps) if describers is not None and is_measured else None


def direct_describer(summary: StatisticsMode) -> Describe | None:
    """See `probe.backends.protocol.Tensors.direct_describer`."""
    if describers is None or summary.mode != "statistics":
        return None
    describe = describers[summary.high_precision, summary.sketch]
    return only_finite(describe) if summary.nonfinite else describe
