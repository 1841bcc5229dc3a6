"""Runs that are equally right and differ in their last bits.

The kernels are exchanged below the functions that a debugger sees, so the recorded calls stay the same: a product is
summed in another order, or in float64, or by another library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class OtherOrder(TorchDispatchMode):
    """Sums of products are split in the middle of what is summed over, as a kernel with other tiles would."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            other = _OTHER_ORDER.get(func)
            result = None if other is None or _dtype(args) is None else other(*args, **kwargs)
            return func(*args, **kwargs) if result is None else result


class Wider(TorchDispatchMode):
    """Products, sums, norms and functions are computed in float64 and rounded once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            dtype = _dtype(args)
            if func not in _WIDER or dtype is None:
                return func(*args, **kwargs)
            named = {key: _convert(value, dtype, torch.float64) for key, value in kwargs.items()}
            result = func(*_convert(args, dtype, torch.float64), **named)
            return _convert(result, torch.float64, dtype)


def _dtype(args: Any) -> torch.dtype | None:
    """The type of the arguments, float32 or bfloat16; ``None`` where it is another or they have more than one."""
    found = {value.dtype for value in args if isinstance(value, Tensor) and value.is_floating_point()}
    return next(iter(found)) if len(found) == 1 and found <= {torch.float32, torch.bfloat16} else None


def _convert(value: Any, of: torch.dtype, to: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(to) if value.dtype is of else value
    if isinstance(value, (list, tuple)):
        return type(value)(_convert(each, of, to) for each in value)
    return value


def _mm(a: Tensor, b: Tensor) -> Tensor | None:
    half = a.shape[-1] // 2
    if not half:
        return None
    return aten.mm(a[:, half:], b[half:]) + aten.mm(a[:, :half], b[:half])


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor | None:
    product = _mm(a, b)
    if product is None or beta != 1 or alpha != 1:
        return None
    return product + bias


def _bmm(a: Tensor, b: Tensor) -> Tensor | None:
    half = a.shape[-1] // 2
    if not half:
        return None
    return aten.bmm(a[..., half:], b[:, half:]) + aten.bmm(a[..., :half], b[:, :half])


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor | None:
    half = x.shape[1] // 2
    if not half or rest[-1] != 1:
        return None
    first = aten.convolution(x[:, :half], weight[:, :half], bias, *rest)
    return first + aten.convolution(x[:, half:], weight[:, half:], None, *rest)


def _mean(x: Tensor, dim: list[int], keepdim: bool = False, *, dtype: Any = None) -> Tensor | None:
    if len(dim) != 1 or dtype is not None or x.shape[dim[0]] < 2:
        return None
    size = x.shape[dim[0]]
    parts = x.split([size // 2, size - size // 2], dim[0])
    return (aten.sum(parts[1], dim, keepdim) + aten.sum(parts[0], dim, keepdim)) / size


def _attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, is_causal: bool = False, **more: Any
) -> tuple[Tensor, Tensor]:
    fused = aten._scaled_dot_product_flash_attention_for_cpu
    # The scores are sums over the last dimension.
    return fused(query.flip(-1), key.flip(-1), value, dropout, is_causal, **more)


_OTHER_ORDER: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _mm,
    aten.addmm.default: _addmm,
    aten.bmm.default: _bmm,
    aten.convolution.default: _convolution,
    aten.mean.dim: _mean,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}
_WIDER = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.native_layer_norm.default,
    aten.native_layer_norm_backward.default,
    aten.mean.dim,
    aten.sum.dim_IntList,
    aten._softmax.default,
    aten._softmax_backward_data.default,
    aten._log_softmax.default,
    aten._log_softmax_backward_data.default,
    aten.gelu.default,
    aten.silu.default,
    aten.tanh.default,
    aten.sigmoid.default,
    aten.rsqrt.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
}


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def everything() -> Iterator[None]:
    with threads(2), torch.backends.mkldnn.flags(enabled=False), OtherOrder():
        yield


ROUNDINGS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "plain": lambda: threads(1),
    "threads": lambda: threads(2),
    "order": OtherOrder,
    "wider": Wider,
    "library": lambda: torch.backends.mkldnn.flags(enabled=False),
    "everything": everything,
}
"""How a run rounds; all of one program, none more right than another."""
