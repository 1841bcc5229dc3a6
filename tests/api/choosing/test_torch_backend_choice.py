"""A real torch is served by the torch backend, and changes nothing for who asks for MindSpore."""

from __future__ import annotations

import torch

from probe.backends import loader


def test_a_real_torch_in_the_process_switches_nothing() -> None:
    assert torch.tensor(0.0).item() == 0.0
    assert loader.detect("torch") == "torch"
    assert loader.detect("mindspore") == "mindspore"
    assert loader.serve("torch").framework == "pytorch"
