"""The bytes of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from probe.backends.torch.quiet import beneath_transforms


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements' bytes in row-major order: one dimension, uint8; of a contiguous host tensor its own memory.

    Raises:
        RuntimeError: its memory was given back, as that of sharded parameters is; torch would end the process.
    """
    if not tensor.data_ptr() and tensor.numel():
        raise RuntimeError("its memory was given back, so it has no values now")
    found: np.ndarray[Any, Any] = beneath_transforms(_bytes_of, tensor)
    return found


def _bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    flat = tensor.contiguous().reshape(-1)
    if not flat.is_cpu:
        flat = flat.cpu()
    # Not numpy(), after which torch refuses to resize the memory for as long as it lives, as FSDP2 does all the time.
    found: np.ndarray[Any, Any] = np.from_dlpack(flat.view(torch.uint8))
    return found
