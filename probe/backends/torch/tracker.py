"""The tracker of backwards for PyTorch, with the common ways through it in a compiled part that need not be there.

To follow the backward of a module takes 41 us of its forward with it and 105 without (benchmarks/RESULTS.md).
"""

from __future__ import annotations

from typing import Any

import torch

from probe.backends.shared import gradient_graph
from probe.backends.shared.backward_tracker import BackwardTracker, Pass
from probe.backends.shared.gradient_graph import (
    CallWatch,
    ModuleWatch,
    NodeHook,
    Passages,
    PostHook,
    PreHook,
    ReturnedView,
)
from probe.backends.torch import internals
from probe.backends.torch.gradient_graph import TorchGraph
from probe.backends.torch.originals import own
from probe.backends.torch.views import CallInputs, gradient_edge, write_check_outside
from probe.common.interfaces import Listener

try:
    from probe.backends.torch import _backward_tracker as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]


class CompiledTracker(BackwardTracker):
    """A `BackwardTracker` that hands calls of ordinary tensors and the hooks on nodes to the compiled part."""

    def __init__(self, listener: Listener, graph: TorchGraph) -> None:
        super().__init__(listener, graph)
        core: Any = compiled.Core(
            self,
            graph,
            listener,
            (self.inputs, self.watch),
            (self._passes, self._passages.numbers),
            (graph.recording, graph.current_pass, internals.next_sequence_number),
            (own._is_view, gradient_edge, write_check_outside, ReturnedView),
            (self._keys[PreHook], self._keys[PostHook], Passages.key),
            (torch.Tensor, torch.nn.Parameter, ModuleWatch, CallWatch, CallInputs, Pass),
            gradient_graph.WORTH_NOTING,
        )
        self._core = core
        self.inputs = core.inputs  # type: ignore[method-assign]
        self.watch = core.watch  # type: ignore[method-assign]
        self.advance = core.advance  # type: ignore[method-assign]

    def _new_hook(self, kind: type[NodeHook], number: int) -> Any:
        return (compiled.PreHook if kind is PreHook else compiled.PostHook)(self._core, number)


def tracker_for(listener: Listener, graph: TorchGraph) -> BackwardTracker:
    """The tracker that reports to `listener`: the compiled one where it is built."""
    return (BackwardTracker if compiled is None else CompiledTracker)(listener, graph)
