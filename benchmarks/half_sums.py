"""Which kernels of PyTorch on a CPU sum in float32 and round once, of bfloat16 and float16, and which round before.

    python benchmarks/half_sums.py

All numbers are positive, so that nothing cancels: a sum in float32 that is rounded once is at most half a unit of the
last place off. What is farther off has rounded parts of the sum: these are the functions with `Trait.ROUNDS_EARLY`
and `Trait.ROUNDS_GRADIENTS_EARLY` in `probe.common.operations.table`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

ONE_ROUNDING = 0.51
"""Units of the last place: half of one, and what float32 adds."""
N = 256
DTYPES = (torch.bfloat16, torch.float16)
INDEX = torch.arange(N) % 4
ROWS = INDEX[:, None].expand(N, 8)


class Case(NamedTuple):
    function: Callable[..., Any]
    shapes: Sequence[Sequence[int]]


CASES: dict[str, Case] = {
    "sum": Case(lambda x: x.sum(0), [(N, 8)]),
    "mean": Case(lambda x: x.mean(0), [(N, 8)]),
    "nansum": Case(lambda x: x.nansum(0), [(N, 8)]),
    "cumsum": Case(lambda x: x.cumsum(0), [(N, 8)]),
    "norm": Case(lambda x: x.norm(dim=0).detach(), [(N, 8)]),
    "matmul": Case(torch.matmul, [(N, N), (N, 8)]),
    "mm": Case(torch.mm, [(N, N), (N, 8)]),
    "bmm": Case(torch.bmm, [(3, 8, N), (3, N, 8)]),
    "mv": Case(torch.mv, [(8, N), (N,)]),
    "linear": Case(F.linear, [(N, N), (8, N), (8,)]),
    "addmm": Case(torch.addmm, [(N, 8), (N, N), (N, 8)]),
    "addmv": Case(torch.addmv, [(8,), (8, N), (N,)]),
    "baddbmm": Case(torch.baddbmm, [(3, 8, 8), (3, 8, N), (3, N, 8)]),
    "inner": Case(torch.inner, [(8, N), (5, N)]),
    "tensordot": Case(lambda a, b: torch.tensordot(a, b, 1), [(8, N), (N, 5)]),
    "einsum": Case(lambda a, b: torch.einsum("bik,bjk->bij", a, b), [(3, 8, N), (3, 5, N)]),
    "addbmm": Case(torch.addbmm, [(8, 8), (64, 8, N), (64, N, 8)]),
    "addr": Case(torch.addr, [(32, 8), (32,), (8,)]),
    "multi_dot": Case(lambda a, b, c: torch.linalg.multi_dot((a, b, c)), [(8, N), (N, 8), (8, 5)]),
    "chain_matmul": Case(lambda a, b, c: torch.linalg.multi_dot((a, b, c)), [(8, N), (N, 8), (8, 5)]),
    "bilinear": Case(F.bilinear, [(N, 24), (N, 24), (3, 24, 24)]),
    "conv1d": Case(F.conv1d, [(N, 4, 8), (4, 4, 3), (4,)]),
    "conv2d": Case(F.conv2d, [(N, 4, 5, 5), (4, 4, 3, 3), (4,)]),
    "conv3d": Case(F.conv3d, [(N, 2, 3, 4, 4), (3, 2, 2, 2, 2), (3,)]),
    "conv_transpose1d": Case(F.conv_transpose1d, [(N, 4, 8), (4, 3, 3), (3,)]),
    "conv_transpose2d": Case(F.conv_transpose2d, [(N, 4, 5, 5), (4, 3, 3, 3), (3,)]),
    "conv_transpose3d": Case(F.conv_transpose3d, [(N, 2, 3, 4, 4), (2, 3, 2, 2, 2), (3,)]),
    "avg_pool1d": Case(lambda x: F.avg_pool1d(x, 33, 1), [(1, 2, 99)]),
    "avg_pool2d": Case(lambda x: F.avg_pool2d(x, 9, 1), [(1, 2, 30, 30)]),
    "adaptive_avg_pool1d": Case(lambda x: F.adaptive_avg_pool1d(x, 5), [(4, 8, 64)]),
    "adaptive_avg_pool2d": Case(lambda x: F.adaptive_avg_pool2d(x, 5), [(1, 2, 64, 64)]),
    "adaptive_avg_pool3d": Case(lambda x: F.adaptive_avg_pool3d(x, 5), [(1, 2, 16, 16, 16)]),
    "max_pool1d": Case(lambda x: F.max_pool1d(x, 33, 1), [(1, 2, 99)]),
    "max_pool2d": Case(lambda x: F.max_pool2d(x, 9, 1), [(1, 2, 30, 30)]),
    "max_pool3d": Case(lambda x: F.max_pool3d(x, 5, 1), [(1, 2, 12, 12, 12)]),
    "unfold": Case(lambda x: F.unfold(x, 7), [(1, 2, 30, 30)]),
    "fold": Case(lambda x: F.fold(x, (20, 20), 7), [(1, 98, 196)]),
    "layer_norm": Case(lambda bias: F.layer_norm(torch.ones(N, 8).to(bias), (8,), None, bias), [(8,)]),
    "embedding": Case(lambda w: F.embedding(INDEX, w), [(4, 8)]),
    "embedding_bag": Case(lambda w: F.embedding_bag(INDEX.view(1, -1), w, mode="sum"), [(4, 8)]),
    "getitem": Case(lambda x: x[INDEX], [(4, 8)]),
    "take": Case(lambda x: x.take(INDEX), [(4,)]),
    "gather": Case(lambda x: x.gather(0, ROWS), [(4, 8)]),
    "index_select": Case(lambda x: x.index_select(0, INDEX), [(4, 8)]),
    "index_put": Case(lambda x, s: x.index_put((INDEX,), s, accumulate=True), [(4, 8), (N, 8)]),
    "index_reduce": Case(lambda x, s: x.index_reduce(0, INDEX, s, "mean").detach(), [(4, 8), (N, 8)]),
    "index_add": Case(lambda x, s: x.index_add(0, INDEX, s), [(4, 8), (N, 8)]),
    "scatter_add": Case(lambda x, s: x.scatter_add(0, ROWS, s), [(4, 8), (N, 8)]),
    "repeat": Case(lambda x: x.repeat(N, 1), [(1, 8)]),
    "expand": Case(lambda x: x.expand(N, 8), [(1, 8)]),
}


class Measured(NamedTuple):
    """Units of the last place that the worst element is off; 0 where there is nothing to measure."""

    result: float
    gradients: float


def measure(case: Case) -> Measured:
    """The worst of both dtypes; a dtype for which there is no kernel is left out."""
    found = [each for dtype in DTYPES for each in [_measure(case, dtype)] if each is not None]
    return Measured(max(each.result for each in found), max(each.gradients for each in found))


def _measure(case: Case, dtype: torch.dtype) -> Measured | None:
    draws = torch.Generator().manual_seed(1)
    inputs = [torch.rand(tuple(shape), generator=draws).add(0.5).to(dtype).requires_grad_() for shape in case.shapes]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    try:
        result, right = case.function(*inputs), case.function(*exact)
        if not result.requires_grad:
            return Measured(_ulps(result, right), 0.0)
        gradient = torch.rand(tuple(result.shape), generator=draws).add(0.5).to(dtype)
        found = torch.autograd.grad(result, inputs, gradient, allow_unused=True)
    except NotImplementedError:
        return None
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        return None
    wanted = torch.autograd.grad(right, exact, gradient.double(), allow_unused=True)
    pairs = zip(found, wanted)
    return Measured(_ulps(result, right), max(_ulps(one, other) for one, other in pairs if one is not None))


def _ulps(result: Any, right: Any) -> float:
    form, size = torch.finfo(result.dtype), right.detach().abs()
    place = form.eps * 2 ** size.clamp(min=form.tiny).log2().floor()
    return float(((result.detach().double() - right.detach()).abs() / place).max())


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, case in CASES.items():
        result, gradients = measure(case)
        print(f"{name:20} result {result:6.2f} ULP, gradients {gradients:6.2f} ULP")


if __name__ == "__main__":
    main()
