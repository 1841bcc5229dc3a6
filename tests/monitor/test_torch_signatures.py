"""The signature of a gradient, as it is computed on a device, is that of numpy; the functions run on the CPU here."""

from __future__ import annotations

import pytest
import torch

from probe.backends.protocol import Signature
from probe.backends.torch import trend_measuring


@pytest.mark.parametrize("shape", [(1,), (5, 7), (8, 3), (101, 13)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_functions_of_torch_give_what_numpy_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    tensor = torch.randn(shape).to(dtype)
    if tensor.numel() > 8:
        tensor.view(-1)[5] = 0
    wanted = ((-1.0, 0.0, 0.5), True, True)
    (expected,) = trend_measuring.signatures([tensor], *wanted)
    filled: list[Signature | None] = [None]
    on_device = trend_measuring._on_a_device(0, tensor.to(torch.float32), *wanted)
    # What is on the host is read at once, as what is too large.
    assert on_device.checksum is not None and len(on_device.parts) == 2
    trend_measuring._fill(filled, [on_device], wanted[0])
    (found,) = filled
    assert expected is not None and found is not None
    assert (found.bits, found.checksum) == (expected.bits, expected.checksum)
    assert found.values == pytest.approx(expected.values, rel=1e-6)
