"""The values of one tensor, from the file a framework wrote. Nothing in such a file is executed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.errors import FileCheckException, MissingDependency


def read_tensor(path: str) -> NDArray[Any]:
    """The values in a ``.npy`` or ``.pt`` file; what numpy has no type for is widened to float32.

    Raises:
        FileCheckException: the file is missing, damaged or of another kind.
        MissingDependency: a ``.pt`` file, and torch is not installed.
    """
    try:
        if path.endswith(".npy"):
            return np.asarray(np.load(path, allow_pickle=False))
        if path.endswith(".pt"):
            return _read_pt(path)
    except (MissingDependency, MemoryError):
        raise
    except OSError as error:
        raise FileCheckException(f"{path}: cannot be read: {error.strerror or error}.") from None
    except Exception as error:
        # What torch and numpy raise for a damaged file is of many classes, among them RuntimeError and KeyError.
        reason = str(error).split("\n", 1)[0] or type(error).__name__
        raise FileCheckException(f"{path}: not a tensor: {reason}.") from None
    raise FileCheckException(f"{path}: tensors are read from .pt and .npy files.")


def _read_pt(path: str) -> NDArray[Any]:
    try:
        import torch
    except ImportError:
        raise MissingDependency(f"{path}: torch is needed to read .pt files: pip install 'msprobe[torch]'.") from None
    value = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(value, torch.Tensor):
        raise FileCheckException(f"{path}: holds {type(value).__name__}, not a tensor.")
    value = value.detach()
    try:
        return value.numpy()
    except (TypeError, RuntimeError):
        # bfloat16, the float8 types, and views that are conjugated or negated.
        resolved = value.resolve_conj().resolve_neg()
        return (resolved if resolved.is_complex() else resolved.float()).numpy()
