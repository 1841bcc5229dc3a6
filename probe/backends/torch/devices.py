"""The kinds of accelerators, and the module in which torch has the functions of each.

Besides those of torch's own there is one that a package registers from outside under a name of its choice, as torch_npu
does with ``npu``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import torch

from probe.backends.torch import internals
from probe.common import log

_OWN = ("cuda", "xpu")
_NO_NAME = "privateuseone"
"""The name of the kind that is registered from outside, as long as nothing is."""


def kinds() -> tuple[str, ...]:
    """The kinds of accelerators that torch knows, such as ``cuda`` and ``npu``, whether or not there is a device."""
    outside = internals.outside_device()
    return _OWN if outside == _NO_NAME else (*_OWN, outside)


def in_use() -> list[tuple[str, Any]]:
    """The kinds that the program has used, with torch's modules. To ask others for their state initializes them."""
    modules: list[tuple[str, Any]] = [(kind, getattr(torch, kind, None)) for kind in kinds()]
    return [(kind, module) for kind, module in modules if hasattr(module, "is_initialized") and module.is_initialized()]


def available() -> list[tuple[str, Any]]:
    """The kinds of which there is a device, with torch's modules."""
    ascend()
    modules = [(kind, getattr(torch, kind, None)) for kind in kinds()]
    return [(kind, module) for kind, module in modules if module is not None and module.is_available()]


def ascend() -> Any | None:
    """`torch.npu` if Ascend support is installed and works, else None."""
    if "torch_npu" not in sys.modules and importlib.util.find_spec("torch_npu") is not None:
        try:
            importlib.import_module("torch_npu")
        except Exception as problem:
            # Half an installation (no driver, other torch version) fails in many ways and must hurt nobody here.
            log.warning(f"torch_npu cannot be imported, so no NPU is used or seeded: {problem!r}.", once="npu-import")
    return getattr(torch, "npu", None)
