"""What operations compute inside, moved by roundings: a function of several operations rounds more than its inputs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from probe.backends.torch.guards import skipped, with_mode
from probe.backends.torch.internals import TorchDispatchMode

# Operations of ATen that compute no new number.
_EXACT = frozenset(
    f"aten::{name}"
    for name in (
        "abs", "alias", "arange", "cat", "ceil", "clamp", "clone", "copy_", "detach", "empty", "empty_like",
        "empty_strided", "fill_", "floor", "full", "full_like", "gather", "index", "masked_fill", "max", "maximum",
        "min", "minimum", "neg", "new_empty", "new_zeros", "ones", "ones_like", "relu", "round", "scalar_tensor",
        "select_backward", "sgn", "sign", "slice_backward", "sort", "stack", "threshold_backward", "_to_copy", "trunc",
        "where", "zero_", "zeros", "zeros_like",
    )
)  # fmt: skip


class _Moved(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Multiplies every float that an operation of ATen returns by 1 + `unit` or 1 - `unit`, drawn from `seed`.

    It works below the gradient graph, so that what is saved for the backward is moved as well: of a softmax the
    backward sees the result that was rounded.
    """

    def __init__(self, unit: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unit, self._generator = unit, torch.Generator().manual_seed(seed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import the compiler, which takes seconds, to keep it away; `skipped` does."""
        return False

    @skipped
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if function.is_view or function.namespace != "aten" or function._schema.name in _EXACT:
            return output
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                signs = torch.randint(0, 2, tensor.shape, generator=self._generator, dtype=tensor.dtype)
                tensor.mul_(1 + self._unit * (2 * signs - 1))
        return output


class _Inside(threading.local):
    """The moves that are made on this thread."""

    moved: _Moved | None = None


_inside = _Inside()


@contextlib.contextmanager
def rounding_inside(unit: float, seed: int) -> Iterator[None]:
    """Calls and gradients that are evaluated inside are moved."""
    before, _inside.moved = _inside.moved, _Moved(unit, seed)
    try:
        yield
    finally:
        _inside.moved = before


def moving() -> contextlib.AbstractContextManager[Any]:
    """The moves asked for by `rounding_inside`, around one call: no mode of the caller acts there otherwise."""
    return contextlib.nullcontext() if _inside.moved is None else with_mode(_inside.moved)
