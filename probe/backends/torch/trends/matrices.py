"""Statistics of whole matrices: spectral norms, how attention spreads, and how routers choose experts."""

from __future__ import annotations

import math
from typing import Any

import torch

from probe.backends.torch import internals
from probe.backends.torch.guards import with_autograd_kernels
from probe.backends.torch.originals import functions, own

_SMALL = 256
"""The smaller side up to which all singular values are computed: 256 x 256 take 9 ms on one core. A guess."""
_ITERATIONS = 50
"""At most; from the vector of the last step a few are enough."""
_TOLERANCE = 1e-6
_norm = internals.vector_norm


class TorchSpectralNorm:
    """Implements `probe.backends.protocol.SpectralNorm`: all singular values, or a power iteration that draws nothing.

    The iteration goes on from the vector at which it ended in the step before.
    """

    def __init__(self) -> None:
        self._vector: torch.Tensor | None = None

    def __call__(self, weight: torch.Tensor) -> tuple[float, float]:
        with with_autograd_kernels():
            wide = own.to(own.detach(weight), torch.float32)
            frobenius = own.item(_norm(wide, dtype=torch.float64))
            if not math.isfinite(frobenius):
                return math.nan, math.nan
            largest = self._largest(wide)
        return largest, frobenius / largest if largest else math.nan

    def _largest(self, weight: torch.Tensor) -> float:
        if min(weight.shape) <= _SMALL and max(weight.shape) <= 16 * _SMALL:
            return float(own.item(own.amax(torch.linalg.svdvals(weight))))
        vector = self._vector
        if vector is None or vector.shape[0] != weight.shape[1] or vector.device != weight.device:
            # Row norms of the transposed: no row of a weight is orthogonal to all of them.
            vector = functions.add(_norm(weight, dim=0), 1e-12)
        vector = functions.div(vector, _norm(vector))
        value = 0.0
        for _ in range(_ITERATIONS):
            across = own.mv(weight, vector)
            found = float(own.item(_norm(across)))
            if not found:
                return 0.0
            back = own.mv(own.t(weight), functions.div(across, found))
            vector = functions.div(back, _norm(back))
            if abs(found - value) <= _TOLERANCE * found:
                value = found
                break
            value = found
        self._vector = vector
        return value


def attention(query: torch.Tensor, key: torch.Tensor, order: str) -> tuple[float, float]:
    """Entropy and largest probability of causal attention, means over the queries of the first batch and head."""
    with with_autograd_kernels():
        q, k = (_first(each, order) for each in (query, key))
        scores = functions.div(own.matmul(q, own.t(k)), math.sqrt(q.shape[-1]))
        causal = own.tril(functions.ones_like(scores, dtype=torch.bool))
        scores = own.masked_fill(scores, own.logical_not(causal), -math.inf)
        logs = functions.log_softmax(scores, -1)
        p = own.exp(logs)
        entropy = own.sum(own.masked_fill(functions.mul(p, logs), own.logical_not(causal), 0.0), -1)
        return -float(own.item(functions.mean(entropy))), float(own.item(functions.mean(own.amax(p, -1))))


def routing(values: torch.Tensor, are_logits: bool) -> list[tuple[float, float, float]]:
    """For each expert its part of the mean entropy, the share of tokens that prefer it, and its mean probability.

    Tokens that a router drops have weights of zero for all experts; the means are of the others.
    """
    with with_autograd_kernels():
        wide = own.to(own.detach(values), torch.float32)
        experts = wide.shape[-1]
        wide = own.reshape(wide, (-1, experts))
        p = own.softmax(wide, -1) if are_logits else wide
        total = own.sum(p, -1, True)
        is_dropped = own.eq(total, 0)
        p = functions.div(p, own.masked_fill(total, is_dropped, 1.0))
        first = own.unsqueeze(own.argmax(p, -1), -1)
        prefers = own.to(own.eq(first, functions.arange(experts, device=p.device)), torch.float32)
        parts = functions.stack([own.neg(functions.xlogy(p, p)), own.masked_fill(prefers, is_dropped, 0.0), p])
        tokens = own.clamp(own.sum(own.logical_not(is_dropped)), min=1)
        return [tuple(each) for each in own.tolist(own.t(functions.div(own.sum(parts, 1), tokens)))]


def _first(tensor: torch.Tensor, order: str) -> Any:
    wide = own.to(own.detach(tensor), torch.float32)
    return wide[:, 0, 0] if order == "s,b,h,d" else wide[0, :, 0]
