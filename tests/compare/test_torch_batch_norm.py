"""Two precisions of a convolutional network as it is initialised: batch norms over few elements, three steps of SGD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import probe

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):
    """A block of MobileNetV2: behind its last batch norm is no activation, so that the next means nearly cancel."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        inner = 4 * width
        self.expand = nn.Sequential(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU())
        grouped = nn.Conv2d(inner, inner, 3, 2, 1, groups=inner, bias=False)
        self.depthwise = nn.Sequential(grouped, nn.BatchNorm2d(inner), nn.SiLU())
        self.project = nn.Sequential(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        return self.project(self.depthwise(self.expand(x)))


def trained(new_debugger: Any, folder: Path, dtype: Any, level: str, activation: Any = None) -> Path:
    """Three steps, dumped; one block may have another activation."""
    torch.manual_seed(3)
    blocks = [Block(width, out) for width, out in ((8, 8), (8, 12), (12, 16), (16, 16))]
    if activation is not None:
        blocks[1].depthwise[2] = activation
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, *head).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    debugger = new_debugger(level=level, dump_path=str(folder))
    for step in range(3):
        random = torch.Generator().manual_seed(step)
        images, labels = torch.randn(6, 3, 32, 32, generator=random), torch.randint(10, (6,), generator=random)
        debugger.start(model)
        loss = nn.functional.cross_entropy(model(images.to(dtype)).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    return folder


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_right_run_is_not_accused_and_another_activation_is_named(
    new_debugger: Any, tmp_path: Path, level: str
) -> None:
    golden = trained(new_debugger, tmp_path / "golden", torch.float32, level)
    right = probe.verdict(trained(new_debugger, tmp_path / "right", torch.bfloat16, level), golden)
    assert right.divergence is None, right.answer
    wrong = probe.verdict(trained(new_debugger, tmp_path / "wrong", torch.bfloat16, level, nn.ReLU()), golden)
    assert wrong.divergence is not None and "2.depthwise" in str(wrong.answer), wrong.answer
