"""L2 metrics: spectral norms of weights, how attention spreads, and how routers choose experts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from probe.backends.protocol import FrameworkAdapter, SpectralNorm, trends_of
from probe.collect.sinks.trend.modules import ModuleTrends
from probe.collect.sinks.trend.wanted import Wanted
from probe.collect.sinks.trend.watched import Chunk
from probe.common import log
from probe.common.report.trends import ATTENTION, LINEAR, ROUTER_LOGITS, ROUTER_WEIGHTS, TrendRow, TrendTable

_ATTENTION_OPS = ("entropy", "softmax_max")
_LINEAR_OPS = ("kernel_norm", "sr")
_ROUTER_OPS = ("entropy", "load", "probability")


class FeatureTrends:
    """Rows of the L2 metrics of one step; for the arguments see `ParameterTrends`."""

    def __init__(
        self,
        adapter: FrameworkAdapter,
        wanted: Wanted,
        chunks: Sequence[Chunk],
        order: Iterator[int],
        failed: Callable[[Any, BaseException], None],
    ) -> None:
        self._trends, self._wanted, self._order, self._failed = trends_of(adapter), wanted, order, failed
        self._is_tensor = adapter.tensors.is_tensor
        linear = wanted.linear
        self._linear: list[tuple[str, int, weakref.ref[Any], SpectralNorm]] = []
        if linear is not None:
            self._linear = [
                (f"{path}.linear", chunk.number, weakref.ref(module), self._trends.spectral_norm())
                for chunk in chunks
                for path, module in chunk.modules
                if self._trends.linear_weight(module) is not None and linear(f"{chunk.number}:{path}")
            ]
        self.begin_step()

    @property
    def watches_modules(self) -> bool:
        """True if modules are to be hooked."""
        wanted = self._wanted
        return any(each is not None for each in (wanted.attention, wanted.router_logits, wanted.router_weights))

    def wants_module(self, path: str) -> bool:
        """True if the module at `path` computes attention, or is a router."""
        wanted = self._wanted
        return any(_fits(each, path) for each in (wanted.attention, wanted.router_logits, wanted.router_weights))

    def listen_to(self, modules: ModuleTrends) -> None:
        """Have the arguments of attention reported, and the outputs of routers."""
        wanted = self._wanted
        if wanted.attention is not None:
            modules.attention = self._add_attention
        if wanted.router_logits is not None or wanted.router_weights is not None:
            modules.routers = self._add_routers

    def begin_step(self) -> None:
        """Forget the step before."""
        self._attention = TrendTable(ATTENTION, _ATTENTION_OPS, has_micro=True, has_shape=False)
        self._norms = TrendTable(LINEAR, _LINEAR_OPS, has_shape=False)
        self._routers = {
            family: TrendTable(family, _ROUTER_OPS, has_micro=True, has_shape=False)
            for family in (ROUTER_LOGITS, ROUTER_WEIGHTS)
        }

    def before(self) -> None:
        """The optimizer is about to step."""
        for name, chunk, weak, norm in self._linear:
            module = weak()
            weight = None if module is None else self._trends.linear_weight(module)
            if weight is not None:
                self._norms.rows.append(TrendRow(name, chunk, 0, norm(weight), "", "", order=next(self._order)))

    def forget_before(self) -> None:
        """Forget what `before` has read."""
        self._norms.rows.clear()

    def tables(self) -> list[TrendTable]:
        """The rows of the step."""
        return [self._attention, *self._routers.values(), self._norms]

    def _add_attention(self, module: Any, micro: int, args: Sequence[Any]) -> None:
        if not _fits(self._wanted.attention, module.path):
            return
        tensors = [each for each in args if self._is_tensor(each)]
        if len(tensors) < 2:
            text = f"attention_hook: {module.path} has fewer than two tensors as positional arguments; no row is made."
            log.warning(text, once=f"monitor attention {module.path}")
            return
        values = self._trends.attention(tensors[0], tensors[1], self._wanted.order)
        name = f"{module.path}.attention"
        self._attention.rows.append(TrendRow(name, module.chunk, micro, values, "", "", order=next(self._order)))

    def _add_routers(self, module: Any, micro: int, output: Any) -> None:
        wanted = self._wanted
        for family, chosen in ((ROUTER_LOGITS, wanted.router_logits), (ROUTER_WEIGHTS, wanted.router_weights)):
            if not _fits(chosen, module.path):
                continue
            tensors = [output] if self._is_tensor(output) else self._trends.tensors_in(output)
            if not tensors or not tensors[0].shape:
                text = f"{family}: {module.path} returns no tensor with a dimension for experts; no row is made."
                log.warning(text, once=f"monitor router {module.path}")
                continue
            experts = self._trends.routing(tensors[0], family == ROUTER_LOGITS)
            entropies, loads, probabilities = zip(*experts)
            whole = sum(entropies), max(loads), max(probabilities)
            names = [f"{module.path}.router", *(f"{module.path}.expert_{at}" for at in range(len(experts)))]
            table = self._routers[family]
            for name, values in zip(names, [whole, *experts]):
                table.rows.append(TrendRow(name, module.chunk, micro, values, "", "", order=next(self._order)))


def _fits(chosen: Callable[[str], bool] | None, path: str) -> bool:
    return chosen is not None and chosen(path)
