"""The backward of operations that write in place into a view.

Such an operation changes the tensor that the view is of. In the gradient graph torch makes it one node of that tensor,
which holds what was written, and the view gets a new node that only later uses of the view itself run through. So the
gradients of the operation are those of its part of the whole tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import torch

_WRITTEN = "CopySlices"


def written_through(output: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Any:
    """The gradient node of the tensor that the view `output` is of, where the call wrote to it; else ``None``."""
    if not any(output is value for value in (*args, *kwargs.values())):
        return None
    node = output._base.grad_fn  # type: ignore[union-attr]
    return node if node is not None and node.name().endswith(_WRITTEN) else None


def part_of_whole(view: torch.Tensor) -> Callable[[Any], Any]:
    """A function that takes `view`'s part out of a gradient of the tensor it is a view of."""
    base: Any = view._base
    whole, strides = base.size(), base.stride()
    size, stride, offset = view.size(), view.stride(), view.storage_offset() - base.storage_offset()

    def part(gradient: Any) -> Any:
        if gradient is None:
            return None
        if gradient.stride() != strides or gradient.layout is not torch.strided:
            gradient = torch.empty_strided(whole, strides, dtype=gradient.dtype, device=gradient.device).copy_(gradient)
        return gradient.as_strided(size, stride, gradient.storage_offset() + offset)

    return part
