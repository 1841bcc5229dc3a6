"""The choices that a device computes are those of numpy; the functions run on the CPU here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from probe.backends.protocol import Source
from probe.backends.shared.choices import choices_of
from probe.backends.torch.tensors import choices
from probe.common.dump.choices import CHOICES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_gives_what_numpy_gives(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    waiting: list[tuple[dict[str, Any], choices.Kept]] = []
    expected = []
    for dim, largest in ((-1, True), (0, False), (None, True)):
        values = torch.randn(5, 7).to(dtype)
        indices = values.argmax() if dim is None else values.topk(2, dim, largest)[1]
        source = Source(values, dim, dim is not None, largest)
        waiting.append(({}, choices.kept_of(indices, source)))
        expected.append(choices_of(indices.numpy(), source, lambda values: values.float().numpy()).packed())
    waiting.append(({}, choices.kept_of(torch.zeros(3, 0, dtype=torch.int64), None)))
    expected.append(choices_of(np.zeros((3, 0), np.int64), None, torch.Tensor.numpy).packed())
    waiting.append(({}, choices.kept_of(torch.arange(6).reshape(2, 3), None)))
    expected.append(choices_of(np.arange(6).reshape(2, 3), None, torch.Tensor.numpy).packed())

    choices.fill(waiting)

    assert [entry[CHOICES] for entry, _ in waiting] == expected
