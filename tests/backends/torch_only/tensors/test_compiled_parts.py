"""Where the framework-free parts were compiled, so was torch's; see `tests/backends/shared/test_compiled_parts.py`."""

from __future__ import annotations

import torch

from probe.backends.shared import reduction
from probe.backends.torch.tensors import plain_tensors


def test_tensors_are_described_by_compiled_code_where_torch_lends_them() -> None:
    can_be = reduction.reduce is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    assert (plain_tensors.describers is not None) == can_be
