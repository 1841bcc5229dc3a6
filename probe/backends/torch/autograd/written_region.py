"""The part of a tensor that a write through a view reached, read from the node that torch made for the write.

The node cuts the written part out of the gradient before it hands it to the operation that wrote. So it is run on a
gradient without memory, and stopped where it has done so: nothing of the operation runs, and nothing is computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from probe.backends.torch.autograd.strides import StridedLayout
from probe.backends.torch.guards import skipped, unobserved, with_dispatch_modes
from probe.backends.torch.internals import TorchDispatchMode
from probe.backends.torch.originals import functions


class _CutOut(Exception):
    """The node has the written part."""

    def __init__(self, part: torch.Tensor) -> None:
        self.part = part


class _UntilCutOut(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops at the copy of the written part that the operation would get."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import its compiler

    @skipped
    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.clone.default:
            raise _CutOut(args[0])
        return unobserved(functools.partial(func, **(kwargs or {})), *args)


def written_region(write: Any, whole: StridedLayout) -> StridedLayout | None:
    """The region written by the node `write`, in a tensor of layout `whole`; ``None`` if it is unknown."""
    gradient = functions.empty_strided(whole.size, whole.stride, dtype=whole.dtype, device="meta")
    try:
        with with_dispatch_modes(), _UntilCutOut():  # type: ignore[no-untyped-call]
            write(gradient)
    except _CutOut as found:
        part = StridedLayout.of(found.part)
        # The storage that torch computes with begins where the tensor does.
        return part._replace(offset=part.offset + whole.offset * whole.dtype.itemsize // part.dtype.itemsize)
    except RuntimeError:  # torch's about a graph that has been given back, which the backward will raise as well
        return None
    return None
