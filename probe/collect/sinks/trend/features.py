"""L2 metrics: spectral norms of weights, and how attention spreads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from probe.backends.protocol import FrameworkAdapter, SpectralNorm
from probe.collect.sinks.trend.modules import ModuleTrends
from probe.collect.sinks.trend.wanted import Chunk, Wanted
from probe.common import log
from probe.common.report.trends import ATTENTION, LINEAR, TrendRow, TrendTable

_ATTENTION_OPS = ("entropy", "softmax_max")
_LINEAR_OPS = ("kernel_norm", "sr")


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
        self._trends, self._wanted, self._order, self._failed = adapter.trends, wanted, order, failed
        self._is_tensor = adapter.tensors.is_tensor
        linear = wanted.linear
        self._linear: list[tuple[str, int, Any, SpectralNorm]] = []
        if linear is not None:
            self._linear = [
                (f"{path}.linear", chunk.number, module, self._trends.spectral_norm())
                for chunk in chunks
                for path, module in chunk.modules
                if self._trends.linear_weight(module) is not None and linear(f"{chunk.number}:{path}")
            ]
        self.begin_step()

    @property
    def watches_modules(self) -> bool:
        """True if modules are to be hooked."""
        return self._wanted.attention is not None

    def wants_module(self, path: str) -> bool:
        """True if the module at `path` computes attention."""
        wanted = self._wanted.attention
        return wanted is not None and wanted(path)

    def listen_to(self, modules: ModuleTrends) -> None:
        """Have the arguments of attention reported."""
        if self.watches_modules:
            modules.attention = self._add_attention

    def begin_step(self) -> None:
        """Forget the step before."""
        self._attention = TrendTable(ATTENTION, _ATTENTION_OPS, has_micro=True, has_shape=False)
        self._norms = TrendTable(LINEAR, _LINEAR_OPS, has_shape=False)

    def before(self) -> None:
        """The optimizer is about to step."""
        for name, chunk, module, norm in self._linear:
            weight = self._trends.linear_weight(module)
            if weight is not None:
                self._norms.rows.append(TrendRow(name, chunk, 0, norm.of(weight), "", "", order=next(self._order)))

    def forget_before(self) -> None:
        """Forget what `before` has read."""
        self._norms.rows.clear()

    def tables(self) -> list[TrendTable]:
        """The rows of the step."""
        return [self._attention, self._norms]

    def _add_attention(self, module: Any, micro: int, args: Sequence[Any]) -> None:
        if not self.wants_module(module.path):
            return
        tensors = [each for each in args if self._is_tensor(each)]
        if len(tensors) < 2:
            text = f"attention_hook: {module.path} has fewer than two tensors as positional arguments; no row is made."
            log.warning(text, once=f"monitor attention {module.path}")
            return
        values = self._trends.attention(tensors[0], tensors[1], self._wanted.order)
        name = f"{module.path}.attention"
        self._attention.rows.append(TrendRow(name, module.chunk, micro, values, "", "", order=next(self._order)))
