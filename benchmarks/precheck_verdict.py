"""The pre-check's verdict over correct and over wrong kernels: false alarms and found faults, per dtype.

    python benchmarks/precheck_verdict.py [--dtypes float32,bfloat16,float16] [--only NAME] [--seed N] [--held-out]
                                          [--alarms] [--faults]

Every operator below runs on the CPU in its dtype, forward and backward, over tensors of several sizes and value ranges,
and is judged against float64 without a second yardstick. Then faults are planted into its results. The constants of
`probe.calls.verdict.tolerance` were chosen with the first seed and sizes; ``--held-out`` takes others.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from probe.backends.torch.execution.rounding import moving, rounding_inside
from probe.calls.verdict import KernelVerdict, Subject, judge
from probe.common.numerics.formats import rounding_format
from probe.common.numerics.rounding import rounded_to, spacing

DRAWS = 8
Array = Any
Maker = Callable[[np.random.Generator, "Size", "Values"], Array]


@dataclass(frozen=True)
class Size:
    name: str
    rows: int
    columns: int
    image: int
    channels: int


SIZES = (
    Size("one", 1, 1, 3, 1),
    Size("small", 4, 33, 5, 2),
    Size("medium", 32, 256, 9, 4),
    Size("large", 96, 1024, 24, 16),
)
HELD_OUT_SIZES = (
    Size("two", 2, 3, 4, 3),
    Size("odd", 7, 61, 6, 3),
    Size("long", 3, 4099, 11, 8),
    Size("wide", 200, 331, 17, 12),
)


@dataclass(frozen=True)
class Values:
    """How large inputs are: normal numbers by `scale`, each by a power of ten drawn from `-spread` to `spread`."""

    name: str
    scale: float = 1.0
    spread: float = 0.0
    offset: float = 0.0


VALUES = (
    Values("normal"),
    Values("tiny", 1e-3),
    Values("large", 30.0),
    Values("mixed", 1.0, 2.0),
    Values("shifted", 1.0, 0.0, 5.0),
)
HELD_OUT_VALUES = (
    Values("third", 0.3),
    Values("small", 0.02),
    Values("ten", 10.0),
    Values("wide", 1.0, 1.0),
    Values("low", 0.5, 0.0, -3.0),
)


def draw(generator: np.random.Generator, shape: Sequence[int], values: Values) -> Array:
    numbers = generator.standard_normal(shape) * values.scale + values.offset
    if values.spread:
        numbers = numbers * 10.0 ** generator.uniform(-values.spread, values.spread, shape)
    return numbers


def like(*dims: str | int) -> Maker:
    """Floats of a shape whose dimensions are fields of `Size` or numbers."""
    return lambda generator, size, values: draw(generator, _shape(dims, size), values)


def normal(*dims: str | int) -> Maker:
    """The same, always of scale one: weights."""
    return lambda generator, size, values: draw(generator, _shape(dims, size), VALUES[0])


def positive(*dims: str | int) -> Maker:
    return lambda generator, size, values: np.abs(draw(generator, _shape(dims, size), values)) + 1e-3 * values.scale


def between(low: float, high: float, *dims: str | int) -> Maker:
    return lambda generator, size, values: generator.uniform(low, high, _shape(dims, size))


def whole(below: str | int, *dims: str | int) -> Maker:
    def make(generator: np.random.Generator, size: Size, values: Values) -> Array:
        return generator.integers(0, _length(below, size), _shape(dims, size))

    return make


def truth(*dims: str | int) -> Maker:
    return lambda generator, size, values: generator.random(_shape(dims, size)) < 0.5


def _length(dim: str | int, size: Size) -> int:
    return dim if isinstance(dim, int) else int(getattr(size, dim))


def _shape(dims: Sequence[str | int], size: Size) -> tuple[int, ...]:
    return tuple(_length(dim, size) for dim in dims)


@dataclass(frozen=True)
class Operator:
    base: str
    function: Callable[..., Any]
    makers: tuple[Maker, ...]
    settings: dict[str, Any]


R, C, S, K = "rows", "columns", "image", "channels"


def operators() -> list[Operator]:
    found: list[Operator] = []

    def add(base: str, function: Callable[..., Any], *makers: Maker, **settings: Any) -> None:
        found.append(Operator(base, function, makers, settings))

    x, y, pos = like(R, C), like(R, C), positive(R, C)
    row = like(C)
    # Arithmetic.
    for name in ("add", "sub", "mul", "maximum", "minimum", "atan2", "hypot", "fmax", "logaddexp"):
        add(f"Torch.{name}", getattr(torch, name), x, y)
    add("Torch.div", torch.div, x, pos)
    add("Torch.add", torch.add, x, row)
    add("Torch.mul", torch.mul, x, row)
    add("Tensor.__mul__", lambda a: a * 0.1, x, **{"1": 0.1})
    add("Tensor.__add__", lambda a: a + 1.7, x, **{"1": 1.7})
    add("Tensor.__rsub__", lambda a: 1 - a, x, **{"1": 1})
    add("Tensor.__pow__", lambda a: a**3, x, **{"1": 3})
    add("Tensor.__pow__", lambda a: a**2, x, **{"1": 2})
    add("Torch.pow", torch.pow, pos, between(-2, 2, R, C))
    add("Torch.addcmul", torch.addcmul, x, y, like(R, C))
    add("Torch.addcdiv", torch.addcdiv, x, y, pos)
    add("Torch.lerp", torch.lerp, x, y, between(0, 1, R, C))
    add("Torch.remainder", torch.remainder, x, pos)
    add("Torch.fmod", torch.fmod, x, pos)
    add("Torch.floor_divide", torch.floor_divide, x, pos)
    for name in ("reciprocal", "sqrt", "rsqrt", "log", "log2", "log10", "log1p", "digamma", "lgamma"):
        add(f"Torch.{name}", getattr(torch, name), pos)
    for name in (
        "abs", "neg", "square", "exp", "exp2", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asinh", "atan",
        "erf", "erfc", "sigmoid", "floor", "ceil", "round", "trunc", "frac", "sign", "relu", "logit", "sinc", "i0",
        "deg2rad", "nan_to_num", "isfinite", "argsort", "signbit",
    ):  # fmt: skip
        add(f"Torch.{name}", getattr(torch, name), between(0.01, 0.99, R, C) if name == "logit" else x)
    for name in ("asin", "acos", "atanh", "erfinv"):
        add(f"Torch.{name}", getattr(torch, name), between(-0.99, 0.99, R, C))
    add("Torch.acosh", torch.acosh, between(1.001, 9, R, C))
    # Activations.
    for name in (
        "gelu", "silu", "elu", "selu", "celu", "softplus", "mish", "hardswish", "hardsigmoid", "leaky_relu", "relu6",
        "logsigmoid", "softsign", "tanhshrink", "softshrink", "hardshrink", "hardtanh", "glu",
    ):  # fmt: skip
        add(f"Functional.{name}", getattr(F, name), like(R, C) if name != "glu" else like(C, R, 2))
    add("Functional.gelu", lambda a: F.gelu(a, approximate="tanh"), x, approximate="tanh")
    add("Functional.prelu", F.prelu, x, normal(1))
    # Reductions.
    for name in ("sum", "mean", "var", "std", "logsumexp", "amax", "nansum"):
        add(
            f"Tensor.{name}",
            lambda a, n=name: getattr(torch, n)(a, -1),
            like(R, C) if name not in ("var", "std") else like(C, 8),
            dim=-1,
        )
    add("Torch.sum", torch.sum, x)
    add("Torch.mean", torch.mean, x)
    add("Torch.sum", torch.sum, pos)
    add("Tensor.sum", lambda a: a.sum(0), pos, dim=0)
    add("Torch.prod", lambda a: a.prod(-1), between(0.5, 1.6, R, 16))
    add("Torch.norm", torch.norm, x)
    add("Torch.norm", lambda a: a.norm(dim=-1), x, dim=-1)
    add("Torch.norm", lambda a: a.norm(p=1, dim=-1), x, dim=-1, p=1)
    add("Torch.cumsum", lambda a: a.cumsum(-1), x, dim=-1)
    add("Torch.cumsum", lambda a: a.cumsum(-1), pos, dim=-1)
    add("Torch.cumprod", lambda a: a.cumprod(-1), between(0.8, 1.25, R, 24))
    add("Torch.logcumsumexp", lambda a: a.logcumsumexp(-1), x)
    add("Torch.max", lambda a: a.max(-1), x, dim=-1)
    add("Torch.min", lambda a: a.min(-1), x, dim=-1)
    add("Torch.median", lambda a: a.median(-1), x, dim=-1)
    add("Torch.argmax", lambda a: a.argmax(-1), x, dim=-1)
    add("Torch.sort", lambda a: a.sort(-1), x, dim=-1)
    add("Torch.topk", lambda a: a.topk(1, -1), x, dim=-1)
    add("Torch.var_mean", lambda a: torch.var_mean(a, -1), like(C, 8))
    # Products.
    add("Torch.matmul", torch.matmul, x, like(C, R))
    add("Torch.matmul", torch.matmul, positive(R, C), positive(C, R))
    add("Torch.bmm", torch.bmm, like(K, S, R), like(K, R, S))
    add("Functional.linear", F.linear, x, normal(R, C), normal(R))
    add("Functional.linear", F.linear, x, normal(8, C))
    add("Torch.addmm", torch.addmm, like(R, R), x, like(C, R))
    add("Torch.baddbmm", torch.baddbmm, like(K, S, S), like(K, S, R), like(K, R, S))
    add("Torch.mv", torch.mv, x, row)
    add("Torch.dot", torch.dot, row, like(C))
    add("Torch.outer", torch.outer, like(R), row)
    add("Torch.einsum", lambda a, b: torch.einsum("bik,bjk->bij", a, b), like(K, S, C), like(K, R, C))
    add("Functional.bilinear", F.bilinear, like(R, S), like(R, S), normal(4, S, S))
    add("Torch.cdist", torch.cdist, like(R, 8), like(S, 8))
    add("Torch.kron", torch.kron, like(R, 2), like(2, S))
    # Convolutions, pooling, images.
    image = like(2, K, S, S)
    add("Functional.conv1d", F.conv1d, like(2, K, C), normal(6, K, 1), normal(6))
    add("Functional.conv2d", lambda a, w, b: F.conv2d(a, w, b, padding=1), image, normal(5, K, 3, 3), normal(5))
    add("Functional.conv2d", lambda a, w: F.conv2d(a, w, stride=2, groups=a.shape[1]), image, normal(K, 1, 3, 3))
    add("Functional.conv3d", F.conv3d, like(1, K, 3, S, S), normal(3, K, 2, 2, 2))
    add("Functional.conv_transpose2d", F.conv_transpose2d, image, normal(K, 3, 2, 2))
    add("Functional.conv_transpose1d", F.conv_transpose1d, like(2, K, C), normal(K, 3, 2))
    add("Functional.avg_pool2d", lambda a: F.avg_pool2d(a, 2, 1), image)
    add("Functional.max_pool2d", lambda a: F.max_pool2d(a, 2, 1), image)
    add("Functional.adaptive_avg_pool2d", lambda a: F.adaptive_avg_pool2d(a, 2), image)
    add("Functional.avg_pool1d", lambda a: F.avg_pool1d(a, 3, 1, 1), like(2, K, C))
    add("Functional.lp_pool2d", lambda a: F.lp_pool2d(a, 2, 2, 1), image)
    for mode in ("nearest", "bilinear", "bicubic"):
        add("Functional.interpolate", lambda a, m=mode: F.interpolate(a, scale_factor=2, mode=m), image, mode=mode)
    add("Functional.pad", lambda a: F.pad(a, (1, 1), mode="reflect"), like(2, K, S))
    add("Functional.pad", lambda a: F.pad(a, (1, 2), value=0.3), x)
    add(
        "Functional.grid_sample",
        lambda a, g: F.grid_sample(a, g, align_corners=False),
        image,
        between(-0.9, 0.9, 2, S, S, 2),
    )
    add("Functional.pixel_shuffle", lambda a: F.pixel_shuffle(a, 2), like(1, 4, S, S))
    add("Functional.unfold", lambda a: F.unfold(a, 2), image)
    add("Functional.fold", lambda a: F.fold(a, (4, 4), 2), like(1, 8, 9))
    # Normalisation.
    add("Functional.layer_norm", lambda a, w, b: F.layer_norm(a, a.shape[-1:], w, b), like(R, C), normal(C), normal(C))
    add("Functional.layer_norm", lambda a: F.layer_norm(a, a.shape[-1:]), like(R, C))
    add("Functional.rms_norm", lambda a, w: F.rms_norm(a, a.shape[-1:], w, 1e-6), x, normal(C))
    add("Functional.group_norm", lambda a, w, b: F.group_norm(a, 1, w, b), image, normal(K), normal(K))
    add("Functional.instance_norm", lambda a: F.instance_norm(a), like(2, K, S, S))
    add("Functional.batch_norm", lambda a, w, b: F.batch_norm(a, None, None, w, b, True), image, normal(K), normal(K))
    add("Functional.batch_norm", F.batch_norm, image, normal(K), between(0.5, 2, K), normal(K), normal(K))
    add("Functional.local_response_norm", lambda a: F.local_response_norm(a, 2), image)
    add("Functional.normalize", lambda a: F.normalize(a, dim=-1), x)
    add("Functional.softmax", lambda a: F.softmax(a, -1), x, dim=-1)
    add("Functional.softmax", lambda a: F.softmax(a, 0), x, dim=0)
    add("Functional.log_softmax", lambda a: F.log_softmax(a, -1), x, dim=-1)
    add("Functional.softmin", lambda a: F.softmin(a, -1), x, dim=-1)
    add("Functional.cosine_similarity", lambda a, b: F.cosine_similarity(a, b, -1), x, y)
    add("Functional.pairwise_distance", F.pairwise_distance, x, y)
    # Losses.
    add("Functional.mse_loss", F.mse_loss, x, y)
    add("Functional.l1_loss", F.l1_loss, x, y)
    add("Functional.smooth_l1_loss", F.smooth_l1_loss, x, y)
    add("Functional.huber_loss", F.huber_loss, x, y)
    add("Functional.cross_entropy", F.cross_entropy, x, whole(C, R))
    add("Functional.cross_entropy", lambda a, t: F.cross_entropy(a, t, label_smoothing=0.1), x, whole(C, R))
    add("Functional.nll_loss", F.nll_loss, x, whole(C, R))
    add("Functional.binary_cross_entropy", F.binary_cross_entropy, between(0.02, 0.98, R, C), between(0, 1, R, C))
    add("Functional.binary_cross_entropy_with_logits", F.binary_cross_entropy_with_logits, x, between(0, 1, R, C))
    add(
        "Functional.kl_div",
        lambda a, t: F.kl_div(a.log_softmax(-1), t, reduction="batchmean"),
        x,
        between(0.01, 1, R, C),
    )
    add("Functional.poisson_nll_loss", F.poisson_nll_loss, between(-2, 2, R, C), between(0, 3, R, C))
    add("Functional.margin_ranking_loss", lambda a, b: F.margin_ranking_loss(a, b, torch.ones_like(a)), row, like(C))
    add("Functional.cosine_embedding_loss", lambda a, b: F.cosine_embedding_loss(a, b, torch.ones(a.shape[0])), x, y)
    add("Functional.triplet_margin_loss", F.triplet_margin_loss, x, y, like(R, C))
    add("Functional.gaussian_nll_loss", F.gaussian_nll_loss, x, y, between(0.3, 2, R, C))
    # Attention.
    heads = like(1, K, S, 16)
    sdpa = "Functional.scaled_dot_product_attention"
    add(sdpa, F.scaled_dot_product_attention, heads, like(1, K, S, 16), like(1, K, S, 16))
    add(
        sdpa,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        heads,
        like(1, K, S, 16),
        like(1, K, S, 16),
    )
    add(sdpa, math_attention, heads, like(1, K, S, 16), like(1, K, S, 16))
    add(
        "Functional.scaled_dot_product_attention",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        heads,
        like(1, K, S, 16),
        like(1, K, S, 16),
        normal(S, S),
    )
    # Indexing and shapes.
    add("Functional.embedding", lambda i, w: F.embedding(i, w), whole(C, R, 8), like(C, 16))
    add("Functional.embedding_bag", lambda i, w: F.embedding_bag(i, w, mode="sum"), whole(C, R, 8), like(C, 16))
    add("Torch.gather", lambda a, i: a.gather(-1, i), x, whole(C, R, 8))
    add("Torch.index_select", lambda a, i: a.index_select(-1, i), x, whole(C, 40))
    add("Tensor.__getitem__", lambda a, i: a[i], x, whole(R, 40))
    add("Tensor.scatter", lambda a, i, s: a.scatter(0, i, s), like(R, C), whole(R, 1, C), like(1, C))
    add("Tensor.scatter_add", lambda a, i, s: a.scatter_add(-1, i, s), x, whole(C, R, 40), like(R, 40))
    add("Tensor.index_add", lambda a, i, s: a.index_add(0, i, s), x, whole(R, 40), like(40, C))
    add("Tensor.scatter_reduce", lambda a, i, s: a.scatter_reduce(-1, i, s, "mean"), x, whole(C, R, 40), like(R, 40))
    add("Tensor.masked_fill", lambda a, m: a.masked_fill(m, -1e4), x, truth(R, C), **{"2": -1e4})
    add("Torch.where", torch.where, truth(R, C), x, y)
    add("Torch.cat", lambda a, b: torch.cat((a, b), -1), x, y)
    add("Torch.stack", lambda a, b: torch.stack((a, b)), x, y)
    add("Torch.split", lambda a: a.split(3, -1), x)
    add("Tensor.transpose", lambda a: a.transpose(0, 1), x)
    add("Tensor.expand", lambda a: a.expand(3, *a.shape), x)
    add("Tensor.repeat", lambda a: a.repeat(3, 1), x)
    add("Torch.tril", torch.tril, x)
    add("Torch.roll", lambda a: a.roll(1, 0), x)
    add("Torch.clamp", lambda a: a.clamp(-0.7, 0.7), x, **{"1": -0.7, "2": 0.7})
    add("Tensor.to", lambda a: a.float(), x)
    add("Tensor.type_as", lambda a: a.bfloat16(), x)
    # Linear algebra, complex numbers.
    add("Torch.trace", torch.trace, like(R, R))
    add("Torch.diff", torch.diff, like(R, C))
    add(
        "Torch.polar",
        lambda a, b: torch.view_as_real(
            torch.polar(a.float(), b.float()) if a.dtype != torch.float64 else torch.polar(a, b)
        ),
        pos,
        between(-3, 3, R, C),
    )
    add("Torch.rotary", rotary, heads, between(0, 200, S, 8))
    return found


def math_attention(q: Any, k: Any, v: Any) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v)


def rotary(q: Any, angle: Any) -> Any:
    cos, sin = torch.cat((angle.cos(), angle.cos()), -1), torch.cat((angle.sin(), angle.sin()), -1)
    first, second = q.chunk(2, -1)
    return q * cos + torch.cat((-second, first), -1) * sin


# --- kernels that sum in half precision


HALVES = (torch.bfloat16, torch.float16)


def summed(products: Any) -> Any:
    """The sum over the last dimension, each addition of which is rounded to the dtype."""
    total = products[..., 0]
    for place in range(1, products.shape[-1]):
        total = total + products[..., place]
    return total


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = summed(q.unsqueeze(-2) * k.unsqueeze(-3)) / q.shape[-1] ** 0.5
    return summed(scores.softmax(-1).unsqueeze(-2) * v.transpose(-1, -2).unsqueeze(-3))


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    return summed(x.unsqueeze(-2) * weight) + bias


def _rms_norm(x: Any) -> Any:
    return x / (summed(x * x) / x.shape[-1] + 1e-6).unsqueeze(-1).sqrt()


def half_accumulators(terms: int) -> list[Operator]:
    """Operators that sum this many numbers in their own dtype if it is one of half precision."""
    found: list[Operator] = []

    def add(base: str, right: Callable[..., Any], wrong: Callable[..., Any], *makers: Maker, **settings: Any) -> None:
        def function(*tensors: Any) -> Any:
            return (wrong if tensors[0].dtype in HALVES else right)(*tensors)

        found.append(Operator(base, function, makers, settings))

    x, many = like(8, terms), positive(8, terms)
    add("Torch.matmul", torch.matmul, lambda a, b: summed(a.unsqueeze(-2) * b.T), x, like(terms, 9))
    add("Torch.bmm", torch.bmm, lambda a, b: summed(a.unsqueeze(-2) * b.mT.unsqueeze(-3)), like(2, 8, terms),
        like(2, terms, 9))  # fmt: skip
    add("Functional.linear", F.linear, _linear, x, like(9, terms), like(9))
    add("Torch.einsum", lambda a, b: torch.einsum("ik,jk->ij", a, b), lambda a, b: summed(a.unsqueeze(-2) * b), x,
        like(9, terms))  # fmt: skip
    add("Functional.conv1d", F.conv1d, lambda a, w: summed(a.mT.unsqueeze(-2) * w[..., 0]).mT, like(2, terms, 8),
        like(9, terms, 1))  # fmt: skip
    add("Torch.sum", lambda a: a.sum(-1), summed, many, dim=-1)
    add("Torch.mean", lambda a: a.mean(-1), lambda a: summed(a) / a.shape[-1], many, dim=-1)
    add("Torch.sum", lambda a: a.sum(-1), summed, like(64, terms), dim=-1)
    attention = "Functional.scaled_dot_product_attention"
    add(attention, F.scaled_dot_product_attention, _attention, like(1, 2, 8, 64), like(1, 2, terms, 64),
        like(1, 2, terms, 64))  # fmt: skip
    add("Functional.rms_norm", lambda a: F.rms_norm(a, a.shape[-1:], eps=1e-6), _rms_norm, x)
    return found


def print_half_accumulators(dtype: str, seed: int) -> None:
    size = Size("one", 1, 1, 1, 1)
    for terms in (32, 128, 512, 2048):
        words = []
        for operator in half_accumulators(terms):
            subject = next(subjects(operator, size, VALUES[0], dtype, seed, True))
            verdict = judge(subject)
            words.append(f"{operator.base.partition('.')[2]} {verdict.status}, mean {verdict.mean_ulp or 0:.2g} ULP")
        print(f"  {dtype} accumulation of {terms}: {'; '.join(words)}")


# --- evaluation: what the runner of the pre-check does, in small


def evaluate(
    operator: Operator, inputs: Sequence[Array], dtype: Any, gradients: Sequence[Array] | None
) -> tuple[list[Array], list[Array], list[str]]:
    """Outputs and input gradients in `dtype`; gradients are those of the outputs, ``None`` for none."""
    tensors = []
    for value in inputs:
        tensor = torch.from_numpy(np.ascontiguousarray(value))
        tensors.append(tensor.to(dtype).requires_grad_() if tensor.is_floating_point() else tensor)
    returned = operator.function(*tensors)
    outputs = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    names = [str(output.dtype).partition(".")[2] for output in outputs]
    values = [to_numpy(output) for output in outputs]
    if gradients is None:
        return values, [], names
    wanted = [(o, g) for o, g in zip(outputs, gradients) if g is not None and o.requires_grad]
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    if not wanted or not leaves:
        return values, [], names
    found = torch.autograd.grad(
        [o for o, _ in wanted],
        leaves,
        [torch.from_numpy(np.ascontiguousarray(g)).to(o.dtype) for o, g in wanted],
        allow_unused=True,
    )
    return values, [None if g is None else to_numpy(g) for g in found], names


def to_numpy(tensor: Any) -> Array:
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()


def held(values: Array, dtype: str) -> Array:
    """Floats rounded to a dtype."""
    form = rounding_format(dtype)
    assert form is not None
    return rounded_to(values, form) if values.dtype.kind == "f" else values


def subjects(operator: Operator, size: Size, values: Values, dtype: str, seed: int, inside: bool) -> Iterator[Subject]:
    """The outputs and gradients of one operator; without `inside` what it computes inside is not moved."""
    generator = np.random.default_rng([seed, len(operator.base), ord(operator.base[-1])])
    kind = getattr(torch, dtype)
    inputs = [held(make(generator, size, values), dtype) for make in operator.makers]
    outputs, _, names = evaluate(operator, inputs, kind, None)
    gradients = [
        held(generator.standard_normal(output.shape), name)
        if output.dtype.kind == "f" and output.shape is not None
        else None
        for output, name in zip(outputs, names)
    ]
    try:
        outputs, found, names = evaluate(operator, inputs, kind, gradients)
    except RuntimeError:
        found = []
    exact_outputs, exact_found, _ = evaluate(operator, inputs, torch.float64, gradients if found else None)
    cache: dict[Any, Any] = {}

    def of_inputs(changed: Callable[[Array], Array]) -> list[Array | None]:
        new = [changed(value) if value.dtype.kind == "f" else value for value in inputs]
        grads = [None if g is None else changed(g) for g in gradients]
        out, grad, _ = evaluate(operator, new, torch.float64, grads if found else None)
        return out + grad

    def moved(unit: float, moves_inside: bool, place: int, moves_inputs: bool = True) -> Array:
        if ("moved", unit, moves_inside, moves_inputs) not in cache:
            draws = np.random.default_rng(1)
            exact = exact_outputs + exact_found
            farthest = [None if e is None else np.zeros(e.shape) for e in exact]
            for number in range(DRAWS):
                asked = rounding_inside(unit, number) if inside and moves_inside else contextlib.nullcontext()
                with asked, moving():
                    far = unit * moves_inputs
                    new = of_inputs(lambda v, far=far: v * (1 + far * draws.choice((-1.0, 1.0), v.shape)))
                for i, (a, b) in enumerate(zip(new, exact)):
                    if b is not None and a.shape == b.shape:
                        farthest[i] = np.fmax(farthest[i], np.abs(a.astype(float) - b.astype(float)))
            cache["moved", unit, moves_inside, moves_inputs] = farthest
        return cache["moved", unit, moves_inside, moves_inputs][place]

    def rounded(name: str, place: int) -> Array:
        if ("rounded", name) not in cache:
            cache["rounded", name] = of_inputs(lambda v: held(v, name))
        return cache["rounded", name][place]

    input_dtypes = [dtype if value.dtype.kind == "f" else str(value.dtype) for value in inputs]
    nothing, settings = (lambda: None), operator.settings
    for place, (result, reference, name) in enumerate(zip(outputs, exact_outputs, names)):
        if result.dtype.kind != "f":
            reference = reference.astype(result.dtype)
        yield Subject(
            operator.base, "forward", result, reference, name, inputs, input_dtypes,
            lambda unit, inside, p=place: moved(unit, inside, p), lambda form, p=place: rounded(form, p), nothing,
            settings, lambda unit, p=place: moved(unit, inside, p, False),
        )  # fmt: skip
    with_gradients = [(g, n) for g, n in zip(gradients, names) if g is not None]
    for place, (result, reference) in enumerate(zip(found, exact_found), len(outputs)):
        if result is None:
            continue
        yield Subject(
            operator.base, "backward", result, reference, dtype, [*inputs, *(g for g, _ in with_gradients)],
            [*input_dtypes, *(n for _, n in with_gradients)],
            lambda unit, inside, p=place: moved(unit, inside, p), lambda form, p=place: rounded(form, p), nothing,
            settings, lambda unit, p=place: moved(unit, inside, p, False),
        )  # fmt: skip


# --- planted faults


FEW_ROUNDINGS = (
    "one element eight places off", "all two places high", "all two places off at random",
    "all cut off, and one place lower",
)  # fmt: skip
"""Faults that are a few roundings large: many functions may make as many."""
IN_TWO_DIGITS = ("two digits", "integers", "last element written first")
"""Faults that a format with two or three digits hides where the numbers are alike."""


def faults(subject: Subject, generator: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Names and wrong results, those left out that are the right one."""
    right = np.asarray(subject.result, np.float64)
    exact = np.asarray(subject.reference, np.float64)
    if right.size < 64 or subject.result.dtype.kind != "f" or not np.isfinite(exact).all() or not right.any():
        return
    if np.count_nonzero(right) < 0.5 * right.size:
        return

    def changed(place: Any, value: Any) -> Array:
        wrong = right.copy()
        wrong[place] = value
        return wrong

    one = tuple(int(generator.integers(0, n)) for n in right.shape)
    largest = np.unravel_index(np.abs(right).argmax(), right.shape)
    width = right.shape[-1]
    yield "NaN in one element", changed(one, np.nan)
    yield "infinity in one element", changed(one, np.inf)
    yield "scale 0.2 %", exact * 1.002
    yield "scale 2 %", exact * 1.02
    yield "twice as large", right * 2
    if subject.dtype == "float32":
        yield "scale 1e-5", exact * (1 + 1e-5)
        for name in ("bfloat16", "float16", "tfloat32"):
            yield f"{name} result", held(exact, name)
            rounded = subject.rounded(name)
            if rounded is not None:
                yield f"{name} inputs", rounded
    yield "largest element 10 % off", changed(largest, right[largest] * 1.1)
    yield "one sign", changed(largest, -right[largest])
    yield "all signs", -right
    if width >= 8:
        yield "tail zero", changed((..., slice(-3, None)), 0.0)
        yield "off by one", np.roll(right, 1, -1)
        yield "gap in the middle", changed((..., slice(width // 2, width // 2 + 3)), 1.7)
    if right.ndim > 1 and right.shape[0] > 3:
        yield "first row everywhere", np.broadcast_to(right[:1], right.shape)
    form = rounding_format(subject.dtype)
    assert form is not None
    nearest = held(exact, subject.dtype)
    steps = spacing(np.abs(nearest), form)
    flat, scale = right.reshape(-1), float(np.abs(right).max())
    yield "one element eight places off", changed(largest, nearest[largest] + 8 * steps[largest])
    yield "all two places high", nearest + 2 * steps
    yield "all two places off at random", nearest + 2 * steps * generator.choice((-1.0, 1.0), right.shape)
    yield "all cut off, and one place lower", np.trunc(exact / steps) * steps - np.sign(exact) * steps
    yield "largest element zero", changed(largest, 0.0)
    yield "largest element doubled", changed(largest, 2 * right[largest])
    yield "1 % of the largest added to all", exact + 0.01 * scale
    yield "5 % noise", exact * (1 + 0.05 * generator.standard_normal(right.shape))
    yield "absolute values", np.where(right > 0, -right, right) if (right > 0).all() else np.abs(right)
    yield "squared", exact * np.abs(exact)
    yield "half as large", right / 2
    yield "all the mean", np.full_like(right, right.mean())
    yield "all infinite", np.full_like(right, np.inf)
    yield "second half first", np.roll(flat, flat.size // 2).reshape(right.shape)
    yield "backwards", flat[::-1].reshape(right.shape)
    yield "last element written first", np.where(np.arange(flat.size) == 0, flat[-1], flat).reshape(right.shape)
    yield "every other element zero", (flat * (np.arange(flat.size) % 2)).reshape(right.shape)
    yield "two digits", np.vectorize(lambda value: float(f"{value:.2g}"))(exact)
    yield "integers", np.rint(exact)
    yield "saturated", np.clip(right, -0.5 * np.abs(right).max(), 0.5 * np.abs(right).max())
    yield "not written", np.zeros_like(right)
    yield "other values", generator.permutation(right.ravel()).reshape(right.shape)


def wrong_subjects(subject: Subject, generator: np.random.Generator) -> Iterator[tuple[str, Subject]]:
    for name, values in faults(subject, generator):
        with np.errstate(all="ignore"):
            stored = held(np.asarray(values, np.float64), subject.dtype)
        if np.array_equal(stored, np.asarray(subject.result, np.float64)):
            continue
        if np.array_equal(stored, held(np.asarray(subject.reference, np.float64), subject.dtype)):
            continue
        yield name, replace(subject, result=stored.astype(subject.result.dtype))


# --- tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32,bfloat16,float16")
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--inside", action="store_true", help="move what operations compute inside, too")
    parser.add_argument("--alarms", action="store_true", help="print every false alarm")
    parser.add_argument("--faults", action="store_true", help="plant faults too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sizes, ranges = (HELD_OUT_SIZES, HELD_OUT_VALUES) if options.held_out else (SIZES, VALUES)
    chosen = [operator for operator in operators() if options.only in operator.base]
    print(f"{len(chosen)} operators, {len({o.base for o in chosen})} names")
    for dtype in options.dtypes.split(","):
        if options.faults and dtype in ("bfloat16", "float16"):
            print_half_accumulators(dtype, options.seed)
        statuses: collections.Counter[str] = collections.Counter()
        alarmed: collections.Counter[str] = collections.Counter()
        planted: collections.Counter[str] = collections.Counter()
        missed: dict[str, list[str]] = collections.defaultdict(list)
        fitting: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        refused: collections.Counter[str] = collections.Counter()
        judging = 0.0
        for operator in chosen:
            for size in sizes:
                for values in ranges:
                    try:
                        found = list(subjects(operator, size, values, dtype, options.seed, options.inside))
                    except (RuntimeError, IndexError, ValueError) as error:
                        refused[f"{operator.base}: {str(error).splitlines()[0][:60]}"] += 1
                        continue
                    generator = np.random.default_rng(options.seed)
                    for subject in found:
                        start = time.perf_counter()
                        verdict = judge(subject)
                        judging += time.perf_counter() - start
                        statuses[verdict.status] += 1
                        if verdict.status not in ("exact", "pass"):
                            alarmed[f"{subject.base} {subject.direction} {verdict.status}"] += 1
                            if options.alarms:
                                print_alarm(subject, size, values, verdict)
                        if (
                            options.faults
                            and size.name in ("small", "medium", "odd")
                            and values.name in ("normal", "third")
                        ):
                            for name, wrong in wrong_subjects(subject, generator):
                                planted[name] += 1
                                said = judge(wrong)
                                fitting[name][said.fits or ""] += 1
                                if said.status in ("exact", "pass"):
                                    missed[name].append(f"{subject.base}.{subject.direction}.{size.name}")
        total = sum(statuses.values())
        bad = total - statuses["exact"] - statuses["pass"]
        print(
            f"\n{dtype}: {total} subjects, {bad} alarms ({bad / max(total, 1):.2%}), {dict(statuses)}; "
            f"{judging / max(total, 1) * 1e6:.0f} us each with the draws"
        )
        for name, count in alarmed.most_common(40):
            print(f"  {count:4} {name}")
        for name, count in planted.items():
            most = collections.Counter(missed[name]).most_common(6)
            print(f"  found {count - len(missed[name])} of {count} {name} {most or ''}")
            precisions = {words: number for words, number in fitting[name].items() if words}
            if precisions:
                print(f"      said to fit: {precisions}")
        if refused:
            print("  not run:", dict(refused))
        sys.stdout.flush()


def print_alarm(subject: Subject, size: Size, values: Values, verdict: KernelVerdict) -> None:
    print(
        f"    {subject.base}.{subject.direction} {size.name}/{values.name} {list(subject.result.shape)} "
        f"{subject.dtype} {verdict.status} ratio {verdict.ratio:.3g} {verdict.bound}; {verdict.interpretation}; "
        f"fits {verdict.fits}; {verdict.worst_result} for {verdict.worst_reference} at {verdict.worst_index}"
    )


if __name__ == "__main__":
    main()
