"""What the contract suite needs of PyTorch with values on a device of its own, see ``tests/support/accelerator``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import backend_torch
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "support" / "accelerator"))
import open_device

if open_device.compiler() is None:
    pytest.exit("no C++ compiler (g++, or what CXX names): what the tool does on a device is not tried", returncode=0)
DEVICE = os.environ.get("PROBE_TEST_DEVICE", "hosted")
"""The name of the device; as ``npu`` it is what torch_npu's is for the tool."""


class Backend(backend_torch.Backend):
    """PyTorch on the device."""

    device = open_device.Device(DEVICE)

    @staticmethod
    def reads() -> int:
        """How often the host has read from the device."""
        return Backend.device.reads()

    def tensor(self, array: Any, dtype: str | None = None, requires_grad: bool = False) -> Any:
        made = super().tensor(array, dtype)
        with torch._C.DisableTorchFunction():
            return made.to(DEVICE).requires_grad_(requires_grad)

    def numpy(self, tensor: Any) -> Any:
        with torch._C.DisableTorchFunction():
            tensor = tensor.detach().cpu()
        return super().numpy(tensor)

    def stored_bytes(self, tensor: Any) -> bytes:
        with torch._C.DisableTorchFunction():
            tensor = tensor.detach().cpu()
        return super().stored_bytes(tensor)

    def linear(self, weight: Any, bias: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return super().linear(weight, bias).to(DEVICE)
